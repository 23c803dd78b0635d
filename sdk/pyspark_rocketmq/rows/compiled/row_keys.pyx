# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The keys of rows, compiled: `row_keys.RowKeys` for thousands of rows at once, to buffers in Arrow's layout.

The digest is BLAKE2b (RFC 7693) of ten bytes, without a key; with wide registers those of eight rows are computed
together, whatever their lengths. Rows that have been seen are in a table with open addressing, 16 bytes for each place.
"""

VERSION = 1772709530

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <string.h>
    static const uint64_t BLAKE2B_IV[8] = {
        0x6a09e667f3bcc908ULL, 0xbb67ae8584caa73bULL, 0x3c6ef372fe94f82bULL, 0xa54ff53a5f1d36f1ULL,
        0x510e527fade682d1ULL, 0x9b05688c2b3e6c1fULL, 0x1f83d9abfb41bd6bULL, 0x5be0cd19137e2179ULL,
    };
    static const uint8_t BLAKE2B_SIGMA[12][16] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
        {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
        {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
        {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
        {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
        {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
        {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
        {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
        {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
        {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
        {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    };
    #define BLAKE2B_ROTATED(x, n) (((x) >> (n)) | ((x) << (64 - (n))))
    #define BLAKE2B_MIX(a, b, c, d, x, y) do { \\
        a += b + (x); d = BLAKE2B_ROTATED(d ^ a, 32); \\
        c += d;       b = BLAKE2B_ROTATED(b ^ c, 24); \\
        a += b + (y); d = BLAKE2B_ROTATED(d ^ a, 16); \\
        c += d;       b = BLAKE2B_ROTATED(b ^ c, 63); \\
    } while (0)

    /* One block of 128 bytes, in numbers of this kind; so many bytes have been read with it. All bits of `last` are set
       for the last one. The rounds are unrolled, so that the numbers of the words are constants. */
    #define BLAKE2B_COMPRESS(kind, h, m, bytes, last) do { \\
        kind v[16]; \\
        for (int i = 0; i < 8; i++) { v[i] = h[i]; v[i + 8] = (kind){0} + BLAKE2B_IV[i]; } \\
        v[12] ^= bytes; \\
        v[14] ^= last; \\
        _Pragma("GCC unroll 12") \\
        for (int i = 0; i < 12; i++) { \\
            const uint8_t *s = BLAKE2B_SIGMA[i]; \\
            BLAKE2B_MIX(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]); \\
            BLAKE2B_MIX(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]); \\
            BLAKE2B_MIX(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]); \\
            BLAKE2B_MIX(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]); \\
            BLAKE2B_MIX(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]); \\
            BLAKE2B_MIX(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]); \\
            BLAKE2B_MIX(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]); \\
            BLAKE2B_MIX(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]); \\
        } \\
        for (int i = 0; i < 8; i++) h[i] ^= v[i] ^ v[i + 8]; \\
    } while (0)

    #define BLOCK_BYTES 128
    #define DIGEST_BYTES 10
    #define FIRST_WORD (BLAKE2B_IV[0] ^ 0x01010000 ^ DIGEST_BYTES)

    typedef struct {
        uint64_t head;      /* of the digest */
        uint16_t tail;
        uint32_t times;     /* 0: a free place */
    } seen;

    static void digest_one_by_one(const uint8_t *contents, const int64_t *ends, Py_ssize_t rows, seen *found) {
        for (Py_ssize_t row = 0; row < rows; row++) {
            const uint8_t *at = contents + ends[row];
            uint64_t size = ends[row + 1] - ends[row], bytes = 0, last = 0, h[8], m[16];
            memcpy(h, BLAKE2B_IV, sizeof h);
            h[0] = FIRST_WORD;
            while (!last) {
                uint64_t part = size - bytes;
                if (part > BLOCK_BYTES) {
                    part = BLOCK_BYTES;
                } else {
                    memset(m, 0, sizeof m);
                    last = ~last;
                }
                memcpy(m, at + bytes, part);
                bytes += part;
                BLAKE2B_COMPRESS(uint64_t, h, m, bytes, last);
            }
            found[row].head = h[0];
            found[row].tail = (uint16_t)h[1];
        }
    }

    /* Wide registers hold the same word of eight rows, whose digests are computed together. Without them that takes
       longer than one by one. */
    #if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
    #define LANES 8
    typedef uint64_t words __attribute__((vector_size(8 * LANES)));

    __attribute__((target_clones("avx512f", "avx2", "default")))
    static void digest_side_by_side(const uint8_t *contents, const int64_t *ends, Py_ssize_t rows, seen *found) {
        words h[8], m[16], bytes = {0}, last = ~bytes;
        Py_ssize_t row[LANES], next = 0, done = 0;
        memset(h, 0, sizeof h);
        memset(m, 0, sizeof m);
        while (done < rows) {
            for (int lane = 0; lane < LANES; lane++) {
                const uint8_t *at;
                uint64_t left;
                if (last[lane]) {
                    row[lane] = next < rows ? next++ : -1;
                    if (row[lane] < 0) continue;    /* computes what nobody reads */
                    for (int i = 0; i < 8; i++) h[i][lane] = BLAKE2B_IV[i];
                    h[0][lane] = FIRST_WORD;
                    bytes[lane] = last[lane] = 0;
                }
                at = contents + ends[row[lane]] + bytes[lane];
                left = ends[row[lane] + 1] - ends[row[lane]] - bytes[lane];
                if (left > BLOCK_BYTES) {
                    for (int i = 0; i < 16; i++) {
                        uint64_t word;
                        memcpy(&word, at + 8 * i, 8);
                        m[i][lane] = word;
                    }
                    bytes[lane] += BLOCK_BYTES;
                } else {
                    uint64_t block[16] = {0};
                    memcpy(block, at, left);
                    for (int i = 0; i < 16; i++) m[i][lane] = block[i];
                    bytes[lane] += left;
                    last[lane] = ~(uint64_t)0;
                }
            }
            BLAKE2B_COMPRESS(words, h, m, bytes, last);
            for (int lane = 0; lane < LANES; lane++)
                if (last[lane] && row[lane] >= 0) {
                    found[row[lane]].head = h[0][lane];
                    found[row[lane]].tail = (uint16_t)h[1][lane];
                    done++;
                }
        }
    }

    static int has_wide_registers(void) { return __builtin_cpu_supports("avx2"); }
    #else
    #define digest_side_by_side digest_one_by_one
    static int has_wide_registers(void) { return 0; }
    #endif
    """
    enum:
        DIGEST_BYTES
    ctypedef struct seen:
        uint64_t head
        uint16_t tail
        uint32_t times
    void digest_one_by_one(const uint8_t* contents, const int64_t* ends, Py_ssize_t rows, seen* found) noexcept nogil
    void digest_side_by_side(const uint8_t* contents, const int64_t* ends, Py_ssize_t rows, seen* found) noexcept nogil
    bint has_wide_registers() noexcept nogil
    void __builtin_prefetch(const void* at) noexcept nogil

cdef enum:
    DIGITS = 20             # hexadecimal ones of a digest
    PLACES_FIRST = 1024
    AHEAD = 16              # so many rows before its turn a row's place is fetched to the cache

cdef const char* _HEX = b"0123456789abcdef"


cdef inline seen* place_of(seen* places, uint64_t mask, const seen* digest) noexcept nogil:
    """Where a digest is in the table, or is to be put."""
    cdef uint64_t at = digest.head & mask
    while places[at].times and (places[at].head != digest.head or places[at].tail != digest.tail):
        at = (at + 1) & mask
    return &places[at]


cdef inline int digits_of(uint32_t number) noexcept nogil:
    """How many decimal digits a number has."""
    cdef int digits = 1
    while number >= 10:
        number //= 10
        digits += 1
    return digits


cdef char* write_key(char* to, const char* prefix, Py_ssize_t prefix_bytes, const seen* row) noexcept nogil:
    """Write a key; returns where the next one begins."""
    cdef uint8_t digest[DIGEST_BYTES]
    cdef uint32_t number = row.times
    cdef int i
    memcpy(to, prefix, prefix_bytes)
    to += prefix_bytes
    memcpy(digest, &row.head, 8)
    memcpy(digest + 8, &row.tail, 2)
    for i in range(DIGEST_BYTES):
        to[2 * i] = _HEX[digest[i] >> 4]
        to[2 * i + 1] = _HEX[digest[i] & 15]
    to += DIGITS
    if number > 1:
        to[0] = c"."
        to += 1 + digits_of(number)
        i = 0
        while number:
            i += 1
            to[-i] = <char>(c"0" + number % 10)
            number //= 10
    return to


cdef class Keys:
    """The keys of one task's rows, for one thread: the table is changed without the interpreter's lock.

    Args:
        prefix: what all of them begin with.

    Attributes:
        wide: whether the digests of several rows are computed together, as this processor does it faster. For tests, it
            can be set to false.
    """

    cdef public bint wide
    cdef bytes _prefix
    cdef seen* _places
    cdef uint64_t _count, _size

    def __cinit__(self, bytes prefix not None):
        self.wide = has_wide_registers()
        self._prefix = prefix
        self._size = PLACES_FIRST
        self._places = <seen*>calloc(self._size, sizeof(seen))
        if self._places is NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self._places)

    def of(self, contents, ends):
        """The keys of some rows: offsets of 64 bits and their text.

        Args:
            contents: a buffer with all of what distinguishes each row from others.
            ends: a buffer of 64-bit numbers: where the first row begins in it, and where each one ends.

        Raises:
            ValueError: a row does not lie in the buffer.
            MemoryError: there is not enough for the table.
        """
        cdef Py_buffer data, limits
        PyObject_GetBuffer(contents, &data, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(ends, &limits, PyBUF_SIMPLE)
            try:
                return self._keys_of(<const uint8_t*>data.buf, data.len, <const int64_t*>limits.buf, limits.len // 8 - 1)
            finally:
                PyBuffer_Release(&limits)
        finally:
            PyBuffer_Release(&data)

    cdef tuple _keys_of(self, const uint8_t* contents, Py_ssize_t size, const int64_t* ends, Py_ssize_t rows):
        cdef Py_ssize_t prefix_bytes = PyBytes_GET_SIZE(self._prefix), text_bytes = 0
        cdef const char* prefix = PyBytes_AS_STRING(self._prefix)
        cdef bytes offsets, text
        cdef int64_t* offset
        cdef char* to
        cdef Py_ssize_t row
        cdef seen* found
        if rows < 0:
            raise ValueError("there is no first row")
        found = <seen*>malloc((rows + 1) * sizeof(seen))
        if found is NULL:
            raise MemoryError
        try:
            with nogil:
                row = self._find(contents, size, ends, rows, found)
            if row == -1:
                raise MemoryError
            if row != rows:
                raise ValueError(f"row {row} does not lie in the buffer")
            offsets = PyBytes_FromStringAndSize(NULL, 8 * (rows + 1))
            offset = <int64_t*>PyBytes_AS_STRING(offsets)
            for row in range(rows):
                offset[row] = text_bytes
                text_bytes += prefix_bytes + DIGITS + (0 if found[row].times == 1 else 1 + digits_of(found[row].times))
            offset[rows] = text_bytes
            text = PyBytes_FromStringAndSize(NULL, text_bytes)
            to = PyBytes_AS_STRING(text)
            with nogil:
                for row in range(rows):
                    to = write_key(to, prefix, prefix_bytes, &found[row])
            return offsets, text
        finally:
            free(found)

    cdef Py_ssize_t _find(
        self, const uint8_t* contents, Py_ssize_t size, const int64_t* ends, Py_ssize_t rows, seen* found
    ) noexcept nogil:
        """Find each row's digest, and how often it has been seen with this one; returns how many rows were, -1 without
        memory."""
        cdef Py_ssize_t row
        cdef seen* place
        for row in range(rows):
            if ends[row] < 0 or ends[row] > ends[row + 1] or ends[row + 1] > size:
                return row
        if self.wide:
            digest_side_by_side(contents, ends, rows, found)
        else:
            digest_one_by_one(contents, ends, rows, found)
        for row in range(rows):
            if self._count * 3 >= self._size * 2 and not self._grow():
                return -1
            if row + AHEAD < rows:
                __builtin_prefetch(&self._places[found[row + AHEAD].head & (self._size - 1)])
            place = place_of(self._places, self._size - 1, &found[row])
            if not place.times:
                place.head = found[row].head
                place.tail = found[row].tail
                self._count += 1
            place.times += 1
            found[row].times = place.times
        return rows

    cdef bint _grow(self) noexcept nogil:
        """Double the table; false without memory."""
        cdef uint64_t size = 2 * self._size, at
        cdef seen* places = <seen*>calloc(size, sizeof(seen))
        if places is NULL:
            return False
        for at in range(self._size):
            if self._places[at].times:
                place_of(places, size - 1, &self._places[at])[0] = self._places[at]
        free(self._places)
        self._places = places
        self._size = size
        return True
