# JSON headers in the usual form, read without an object for each part, and what answers consist of.

from libc.string cimport memcmp


cdef struct Text:
    const char* at
    int size


cdef struct Reader:
    const uint8_t* at
    const uint8_t* end
    char* scratch
    int scratch_used


cdef bint read_text(Reader* r, Text* out) noexcept nogil:
    """A string, from its opening quote on; false unless it is plain ASCII in the usual escapes."""
    cdef const uint8_t* at = r.at
    cdef const uint8_t* start
    cdef uint8_t c
    cdef char* written
    cdef int value, n
    if at >= r.end or at[0] != 34:
        return False
    at += 1
    start = at
    while at < r.end and at[0] != 34 and at[0] != 92:
        if at[0] < 0x20 or at[0] >= 0x80:
            return False
        at += 1
    if at >= r.end:
        return False
    if at[0] == 34:
        out.at = <const char*>start
        out.size = <int>(at - start)
        r.at = at + 1
        return True
    # There are escapes: no longer than the header itself, so the scratch has room.
    out.at = written = r.scratch + r.scratch_used
    memcpy(written, start, at - start)
    written += at - start
    while True:
        if at >= r.end:
            return False
        c = at[0]
        if c == 34:
            break
        if c < 0x20 or c >= 0x80:
            return False
        if c == 92:
            at += 1
            if at >= r.end:
                return False
            c = at[0]
            if c == 117:  # u
                if r.end - at < 5:
                    return False
                value = 0
                for n in range(1, 5):
                    c = at[n]
                    if 48 <= c <= 57:
                        value = value * 16 + c - 48
                    elif 97 <= c <= 102:
                        value = value * 16 + c - 87
                    elif 65 <= c <= 70:
                        value = value * 16 + c - 55
                    else:
                        return False
                if value == 0 or value >= 0x80:
                    return False
                c = <uint8_t>value
                at += 4
            elif c == 34 or c == 92 or c == 47:
                pass
            elif c == 110:
                c = 10
            elif c == 116:
                c = 9
            elif c == 114:
                c = 13
            elif c == 98:
                c = 8
            elif c == 102:
                c = 12
            else:
                return False
        written[0] = <char>c
        written += 1
        at += 1
    out.size = <int>(written - out.at)
    r.scratch_used += out.size
    r.at = at + 1
    return True


cdef bint to_number(const char* at, int size, int64_t least, int64_t most, int64_t* out) noexcept nogil:
    """A whole number in the usual spelling and within these limits, else false."""
    cdef bint negative = False
    cdef int64_t value = 0
    cdef int n
    if size and at[0] == 45:
        negative = True
        at += 1
        size -= 1
    if size < 1 or size > 18 or (at[0] == 48 and (size > 1 or negative)):
        return False
    for n in range(size):
        if not 48 <= at[n] <= 57:
            return False
        value = value * 10 + at[n] - 48
    if negative:
        value = -value
    if not least <= value <= most:
        return False
    out[0] = value
    return True


cdef bint read_number(Reader* r, int64_t* out) noexcept nogil:
    cdef const uint8_t* start = r.at
    while r.at < r.end and (r.at[0] == 45 or 48 <= r.at[0] <= 57):
        r.at += 1
    return to_number(<const char*>start, <int>(r.at - start), -2147483648, 2147483647, out)


cdef inline bint text_is(Text* text, const char* wanted, int size) noexcept nogil:
    return text.size == size and memcmp(text.at, wanted, size) == 0


cdef inline int compare(Text* one, Text* other) noexcept nogil:
    """Negative, zero or positive, as by the order of their bytes."""
    cdef int result = memcmp(one.at, other.at, min(one.size, other.size))
    return result if result else one.size - other.size


cdef inline bint text_number(Text* text, int64_t* out) noexcept nogil:
    return to_number(text.at, text.size, -2147483648, 2147483647, out)


cdef inline bint passes(Reader* r, uint8_t wanted) noexcept nogil:
    """Whether this character comes next; it is read then."""
    if r.at >= r.end or r.at[0] != wanted:
        return False
    r.at += 1
    return True


cdef inline int write_decimal(char* out, int64_t value) noexcept nogil:
    """The digits of a number; returns how many characters."""
    cdef char digits[24]
    cdef int count = 0
    cdef int written = 0
    cdef uint64_t rest
    if value < 0:
        out[0] = 45
        written = 1
        rest = <uint64_t>(-(value + 1)) + 1
    else:
        rest = <uint64_t>value
    while True:
        digits[count] = <char>(48 + rest % 10)
        count += 1
        rest //= 10
        if not rest:
            break
    while count:
        count -= 1
        out[written] = digits[count]
        written += 1
    return written


cdef inline char* text_out(char* out, const char* text, Py_ssize_t size) noexcept nogil:
    memcpy(out, text, size)
    return out + size
