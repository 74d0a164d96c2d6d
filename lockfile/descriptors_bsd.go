//go:build unix && !linux

package lockfile

// descriptors is where open files are found by number. Opening one here duplicates
// the descriptor, so the lock is then common to both; nothing here takes two.
const descriptors = "/dev/fd/"
