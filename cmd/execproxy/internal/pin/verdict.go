package pin

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"time"
)

// checkRefused fails for what was refused, here or by what another process remembers. What it
// remembers of another value or another state of the file is over.
func (s *Source) checkRefused(r reading) error {
	s.mu.Lock()
	at, ok := s.wrong[s.mac(r)]
	s.mu.Unlock()
	if ok {
		return s.refused(at)
	}
	if s.spec.Kind == Prompt {
		return nil // who types knows what was typed before
	}
	switch m := s.store.load(); {
	case m == nil:
	case m.is(r):
		return s.refused(m.Time)
	default:
		if err := s.store.clear(); err != nil {
			s.log.Warn("a refused PIN's marker cannot be removed", "file", s.store.marker(), "err", plain(err))
		}
	}
	return nil
}

// mac is by what a refused one is known in memory: by its file's state, if it has a file.
func (s *Source) mac(r reading) (sum [sha256.Size]byte) {
	h := hmac.New(sha256.New, s.key)
	if r.file != nil {
		fmt.Fprintf(h, "file %v", *r.file)
	} else {
		h.Write([]byte("value "))
		h.Write(r.value)
	}
	h.Sum(sum[:0])
	return sum
}

// remember notes what is about to be tried. A value that has no file to tell it by is hashed
// slowly, but only if it is refused: until then a copy is kept.
func (s *Source) remember(r reading) *tried {
	t := &tried{mac: s.mac(r), file: r.file, forget: func() {}}
	if r.file == nil && s.spec.Kind != Prompt {
		value := append([]byte(nil), r.value...)
		t.digest = func() (*digest, error) { return newDigest(value) }
		t.forget = func() { Wipe(value) }
	}
	return t
}

// forgetLast needs s.mu.
func (s *Source) forgetLast() *tried {
	t := s.last
	if s.last = nil; t != nil {
		t.forget()
	}
	return t
}

// Refused remembers that what Secret returned last is wrong. It is not returned again, nor is
// it by other processes, until the file changes or another value is given.
func (s *Source) Refused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.last
	if t == nil {
		return
	}
	s.at, s.accepted = time.Now(), false
	s.wrong[t.mac] = s.at
	s.dropKept()
	if s.spec.Kind != Prompt && s.store.dir != "" {
		m := &refusal{Time: s.at.UTC().Truncate(time.Second), What: s.what, Where: s.where(), File: t.file}
		var err error
		if t.digest != nil {
			m.Value, err = t.digest()
		}
		if err == nil {
			err = s.store.save(m)
		}
		if err != nil {
			s.log.Warn("a refused PIN cannot be remembered: other processes may try it again", "dir", s.store.dir, "err", plain(err))
		}
	}
	s.forgetLast()
	s.guard.end() // only now: who waits must find the marker
}

// Accepted says that what Secret returned last is right: what was refused before is over.
func (s *Source) Accepted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.last; t != nil {
		delete(s.wrong, t.mac)
		s.at, s.accepted = time.Time{}, true
		if s.spec.Kind != Prompt {
			if err := s.store.clear(); err != nil {
				s.log.Warn("a refused PIN's marker cannot be removed", "file", s.store.marker(), "err", plain(err))
			}
		}
	}
	s.forgetLast()
	s.guard.end()
}

// Release says that what Secret returned was not tried after all, so that others may.
func (s *Source) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLast()
	s.guard.end()
}

// Close releases, and wipes what is kept.
func (s *Source) Close() {
	s.Release()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropKept()
}

// dropKept needs s.mu.
func (s *Source) dropKept() {
	if s.kept != nil {
		Wipe(s.kept.value)
		s.kept = nil
	}
}

// refused says what to do about a refused one.
func (s *Source) refused(at time.Time) error {
	cure := "give the right one"
	switch s.spec.Kind {
	case File:
		cure = "write the right one into it (it is tried again when the file changes)"
	case Credential:
		cure = "load the right one and restart the service"
	case Askpass:
		cure = "have it print the right one"
	case Prompt:
		cure = "run it again and type the right one"
	}
	if s.spec.Kind != Prompt && s.spec.Kind != File && s.store.dir != "" {
		cure += ", or remove " + s.store.marker() + " to have this one tried again"
	}
	return s.fail(refusedError{at}, "", cure)
}
