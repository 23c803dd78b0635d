# The fields of a request, and what its signature covers.

cdef enum:
    FIELDS_MOST = 20        # of a header, signature included


cdef struct Fields:
    Text names[FIELDS_MOST]
    Text values[FIELDS_MOST]
    int count
    int access_key      # which field it is, -1 if there is none
    int signature


cdef inline void begin_fields(Fields* fields) noexcept nogil:
    fields.count = 0
    fields.access_key = fields.signature = -1


cdef inline bint take_signing(Fields* fields, Text* name) noexcept nogil:
    """Whether the field that is kept next is one that a signed request has; which one is noted."""
    if text_is(name, b"AccessKey", 9):
        fields.access_key = fields.count
    elif text_is(name, b"Signature", 9):
        fields.signature = fields.count
    elif not text_is(name, b"SecurityToken", 13):
        return False
    return True


cdef inline void keep_field(Fields* fields, Text* name, Text* value) noexcept nogil:
    """One more; there is room for it."""
    fields.names[fields.count] = name[0]
    fields.values[fields.count] = value[0]
    fields.count += 1


cdef bytes string_to_sign(Fields* fields, const uint8_t* body, int64_t body_size):
    """What the signature covers; None if a name is there twice, since what it covers then is not for here to say."""
    cdef Text* value
    cdef int order[FIELDS_MOST]
    cdef int n, place, compared
    cdef Py_ssize_t size = body_size
    cdef bytes signed
    cdef char* out
    for n in range(fields.count):
        place = n
        while place:
            compared = compare(&fields.names[order[place - 1]], &fields.names[n])
            if not compared:
                return None
            if compared < 0:
                break
            order[place] = order[place - 1]
            place -= 1
        order[place] = n
        if n != fields.signature:
            size += fields.values[n].size
    signed = PyBytes_FromStringAndSize(NULL, size)
    out = PyBytes_AS_STRING(signed)
    for n in range(fields.count):
        if order[n] != fields.signature:
            value = &fields.values[order[n]]
            out = text_out(out, value.at, value.size)
    if body_size:
        memcpy(out, body, body_size)
    return signed


cdef bint is_allowed(
    access, str host, Fields* fields, const uint8_t* body, int64_t body_size, int64_t code, str topic, str group
) except -1:
    """Whether a request is signed by an account that may send it; the last arguments are those of
    `RequestAccess.allows`."""
    cdef Text* key
    cdef Text* signature
    cdef bytes signed
    if fields.access_key < 0 or fields.signature < 0:
        return False
    signed = string_to_sign(fields, body, body_size)
    if signed is None:
        return False
    key = &fields.values[fields.access_key]
    signature = &fields.values[fields.signature]
    return access.allows(
        host, key.at[:key.size].decode("ascii"), signature.at[:signature.size], signed, code, topic, group
    )
