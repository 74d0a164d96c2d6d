package header

const nonblock = 0
