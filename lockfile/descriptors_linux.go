package lockfile

// descriptors is where open files are found by number. A process finds its own there
// also when it has made itself undumpable (PR_SET_DUMPABLE).
const descriptors = "/proc/self/fd/"
