package apiserver

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// store keeps the pods of the namespace "default" and every event there ever was: a watch is a reader of that log, so
// that a slow one holds up nobody.
type store struct {
	mu      sync.Mutex
	pods    map[string]Pod
	order   []string
	log     []Event
	changed chan struct{} // closed and replaced by every event
}

func newStore() *store {
	return &store{pods: map[string]Pod{}, changed: make(chan struct{})}
}

// create adds a pod; false when the name is taken.
func (s *store) create(p Pod) (Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.pods[p.Metadata.Name]; taken {
		return Pod{}, false
	}
	now := time.Now().UTC().Truncate(time.Second)
	p.APIVersion, p.Kind = "v1", "Pod"
	p.Metadata.Namespace, p.Metadata.CreationTimestamp = "default", &now
	p.Metadata.UID = fmt.Sprintf("00000000-0000-4000-8000-%012d", len(s.order)+1)
	p.Status.Phase = "Pending"
	s.order = append(s.order, p.Metadata.Name)
	return s.put("ADDED", p), true
}

// run does a kubelet's work: the pod runs.
func (s *store) run(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[name]
	p.Status.Phase = "Running"
	s.put("MODIFIED", p)
}

func (s *store) put(kind string, p Pod) Pod {
	p.Metadata.ResourceVersion = strconv.Itoa(len(s.log) + 1)
	s.pods[p.Metadata.Name] = p
	s.log = append(s.log, Event{Type: kind, Object: p})
	close(s.changed)
	s.changed = make(chan struct{})
	return p
}

func (s *store) get(name string) (Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pods[name]
	return p, ok
}

// list returns all pods and the version, which is the length of the log, they are of.
func (s *store) list() ([]Pod, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := make([]Pod, 0, len(s.order))
	for _, name := range s.order {
		items = append(items, s.pods[name])
	}
	return items, len(s.log)
}

// since returns the events after version, waiting for the first of them.
func (s *store) since(ctx context.Context, version int) ([]Event, error) {
	for {
		s.mu.Lock()
		changed := s.changed
		if version < len(s.log) {
			events := s.log[version:len(s.log):len(s.log)]
			s.mu.Unlock()
			return events, nil
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
