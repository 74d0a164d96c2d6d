package tpm

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"syscall"
	"time"
)

// socket is a software TPM on a Unix socket. Such serve one client at a time, so each command
// has a connection of its own: several keys and programs can share the TPM.
//
// It is not linuxudstpm's: that one cannot be interrupted, and reads an answer in one piece or
// not at all.
type socket struct {
	path string

	ctx  context.Context
	stop context.CancelFunc
}

func newSocket(path string) *socket {
	s := &socket{path: path}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Send sends one command.
func (s *socket) Send(command []byte) ([]byte, error) {
	conn, err := s.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(s.ctx, func() { conn.Close() })()
	if _, err := conn.Write(command); err != nil {
		return nil, err
	}
	b := make([]byte, headerSize, 512)
	if _, err := io.ReadFull(conn, b); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(b[2:])
	if size < headerSize || size > maxResponse {
		return nil, errors.New("the answer is none of a TPM's")
	}
	b = append(b, make([]byte, size-headerSize)...)
	_, err = io.ReadFull(conn, b[headerSize:])
	return b, err
}

// dial waits while the queue in front of the TPM is full: Linux then answers EAGAIN.
func (s *socket) dial() (net.Conn, error) {
	for {
		conn, err := (&net.Dialer{}).DialContext(s.ctx, "unix", s.path)
		if err == nil || !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		timer := time.NewTimer(time.Millisecond)
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			timer.Stop()
			return nil, s.ctx.Err()
		}
	}
}

// interrupt makes Send return.
func (s *socket) interrupt() { s.stop() }

// Close ends it.
func (s *socket) Close() error {
	s.stop()
	return nil
}
