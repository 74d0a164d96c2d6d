package cluster

import (
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
)

// Ports that programs are told to listen on come from below the range that the
// kernel takes outgoing ports from (and below the one execproxy chooses from),
// so that no connection of anybody's can sit on them when the program binds.
const firstPort, lastPort = 10100, 19900

var (
	portMutex sync.Mutex
	nextPort  atomic.Int64
	reserved  []net.Listener
)

// reservation is a name in the machine's network. Who has it has the port, until its
// process ends, before anybody listens there: two test processes may run at once.
func reservation(port int) string { return fmt.Sprintf("@execproxy-test-port-%d", port) }

// FreePort returns a loopback TCP port nobody listens on, and that no other test
// process was given. It returns none twice.
func FreePort(seed int) (int, error) {
	portMutex.Lock()
	defer portMutex.Unlock()
	nextPort.CompareAndSwap(0, int64(firstPort+seed%(lastPort-firstPort)))
	for range lastPort - firstPort {
		port := int(nextPort.Add(1))
		if port >= lastPort {
			nextPort.Store(firstPort)
			continue
		}
		ours, err := net.Listen("unix", reservation(port))
		if err != nil {
			continue
		}
		reserved = append(reserved, ours)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		_ = l.Close()
		return port, nil
	}
	return 0, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}
