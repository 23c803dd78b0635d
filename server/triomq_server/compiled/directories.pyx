# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What a directory holds that has one file: a start looks into tens of thousands of them, one for each queue."""

VERSION = 1194164424

from cpython.bytes cimport PyBytes_FromStringAndSize
cimport libc.errno
from libc.errno cimport ENXIO
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strcmp, strlen, strncpy
from posix.fcntl cimport O_CLOEXEC, O_RDONLY
from posix.stat cimport S_ISREG, fstat, struct_stat
from posix.types cimport off_t
from posix.unistd cimport close, lseek, pread

cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(str name)
    str PyUnicode_DecodeFSDefault(const char* name)

cdef extern from "<fcntl.h>" nogil:
    int openat(int directory, const char* name, int flags, ...)

cdef extern from "<unistd.h>" nogil:
    enum: SEEK_DATA
    enum: SEEK_HOLE

cdef extern from "<dirent.h>" nogil:
    ctypedef struct DIR:
        pass
    cdef struct dirent:
        char* d_name
        unsigned char d_type
    enum: DT_REG
    DIR* opendir(const char* path)
    int dirfd(DIR* directory)
    dirent* readdir(DIR* directory)
    int closedir(DIR* directory)

cdef enum:
    NAME_BYTES_MOST = 255


cdef int open_only_file(const char* path, char* name) noexcept nogil:
    """Open the one regular file of a directory that holds nothing else, and copy its name; -1 if it is not so."""
    cdef DIR* directory = opendir(path)
    cdef dirent* entry
    cdef int found = 0, descriptor
    if directory == NULL:
        return -1
    while True:
        libc.errno.errno = 0
        entry = readdir(directory)
        if entry == NULL:
            break
        if strcmp(entry.d_name, b".") == 0 or strcmp(entry.d_name, b"..") == 0:
            continue
        found += 1
        # Not all file systems tell the type; to open another one might never end.
        if found > 1 or entry.d_type != DT_REG or strlen(entry.d_name) > NAME_BYTES_MOST:
            closedir(directory)
            return -1
        strncpy(name, entry.d_name, NAME_BYTES_MOST + 1)
    # A directory that cannot be read to its end may hold more.
    descriptor = openat(dirfd(directory), name, O_RDONLY | O_CLOEXEC) if found and not libc.errno.errno else -1
    closedir(directory)
    return descriptor


cdef off_t content_end(int descriptor, off_t length) noexcept nogil:
    """Where the last part of a file ends that the disk keeps anything of; its length if the system does not tell."""
    # Most begin with content: what is asked first is where that ends.
    cdef off_t at = lseek(descriptor, 0, SEEK_HOLE), data
    while 0 <= at < length:
        data = lseek(descriptor, at, SEEK_DATA)
        if data < 0:
            return at if libc.errno.errno == ENXIO else length
        at = lseek(descriptor, data, SEEK_HOLE)
    return length


cdef Py_ssize_t without_zeros(const char* content, Py_ssize_t size) noexcept nogil:
    """Length of the content without the zeros at its end, which are most of a queue's only page."""
    cdef uint64_t eight
    while size >= 8:
        memcpy(&eight, content + size - 8, 8)
        if eight:
            break
        size -= 8
    while size and content[size - 1] == 0:
        size -= 1
    return size


cdef struct OnlyFile:
    char[NAME_BYTES_MOST + 1] name
    char* content       # NULL if there is nothing to tell
    Py_ssize_t size


cdef void look(const char* directory, off_t length, Py_ssize_t most_bytes, OnlyFile* file) noexcept nogil:
    cdef struct_stat status
    cdef off_t end = -1
    cdef int descriptor = open_only_file(directory, file.name)
    if descriptor < 0:
        return
    if fstat(descriptor, &status) == 0 and S_ISREG(status.st_mode) and status.st_size == length:
        end = content_end(descriptor, length)
    if 0 <= end <= most_bytes:
        file.content = <char*>malloc(end + 1)
        if file.content != NULL:
            if pread(descriptor, file.content, end, 0) == end:
                file.size = without_zeros(file.content, end)
            else:
                free(file.content)
                file.content = NULL
    close(descriptor)


def only_files(list paths, off_t length, Py_ssize_t most_bytes):
    """For each directory the file that it holds if it holds nothing else: its name, and its content without the zeros at
    its end. None if it holds anything else, the file is not of this length or has more content, or any of it cannot be
    found out.

    Other threads run while it asks the system.

    Args:
        paths: of the directories.
        length: of the files.
        most_bytes: of content.
    """
    cdef list encoded = [PyUnicode_EncodeFSDefault(path) for path in paths], answers = []
    cdef Py_ssize_t count = len(encoded), n
    cdef const char** directories = <const char**>calloc(count + 1, sizeof(char*))
    cdef OnlyFile* files = <OnlyFile*>calloc(count + 1, sizeof(OnlyFile))
    cdef OnlyFile* file
    try:
        if directories == NULL or files == NULL:
            raise MemoryError
        for n in range(count):
            if b"\0" not in encoded[n]:
                directories[n] = encoded[n]
        with nogil:
            for n in range(count):
                if directories[n] != NULL:
                    look(directories[n], length, most_bytes, &files[n])
        for n in range(count):
            file = &files[n]
            answers.append(
                (PyUnicode_DecodeFSDefault(file.name), PyBytes_FromStringAndSize(file.content, file.size))
                if file.content != NULL else None
            )
    finally:
        if files != NULL:
            for n in range(count):
                free(files[n].content)
        free(files)
        free(directories)
    return answers
