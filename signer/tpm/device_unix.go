//go:build !windows

package tpm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"syscall"

	"github.com/google/go-tpm/tpm2/transport"
	"github.com/google/go-tpm/tpm2/transport/linuxtpm"
)

// privateModes: the mode of a file tells who may read it.
const privateModes = true

// nonblock keeps a FIFO from holding up an open.
const nonblock = syscall.O_NONBLOCK

// dial opens a device or a socket. The first device is the one with the kernel's resource
// manager: programs do not fill each other's slots there, and what we forget is flushed.
func dial(device string) (transport.TPMCloser, error) {
	devices := []string{device}
	if device == "" {
		if runtime.GOOS != "linux" {
			return nil, &Error{Where: "TPM", Err: ErrNoDevice, Detail: "none is known on " + runtime.GOOS,
				Cure: "name the Unix socket of a software TPM, or keep the key in a file or a PKCS#11 token"}
		}
		devices = []string{"/dev/tpmrm0", "/dev/tpm0"}
	}
	for i, name := range devices {
		t, err := dialOne(name)
		switch last := i == len(devices)-1; {
		case err == nil:
			return t, nil
		case !errors.Is(err, fs.ErrNotExist), last && device != "":
			return nil, noDevice(name, err)
		}
	}
	return nil, &Error{Where: "TPM", Err: ErrNoDevice, Detail: "neither /dev/tpmrm0 nor /dev/tpm0 is there",
		Cure: "switch the TPM on in the firmware's setup, or give the device to this container"}
}

func dialOne(name string) (transport.TPMCloser, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSocket != 0 {
		return newSocket(name), nil
	}
	return linuxtpm.Open(name)
}

func noDevice(name string, err error) error {
	e := &Error{Where: "TPM " + name, Err: fmt.Errorf("%w: %w", ErrNoDevice, plain(err))}
	switch {
	case errors.Is(err, fs.ErrPermission):
		e.Cure = "let this user at it: `usermod -aG tss USER`, and log in again"
	case errors.Is(err, syscall.EBUSY):
		e.Cure = "another program has it: use /dev/tpmrm0, or end that program"
	case errors.Is(err, linuxtpm.ErrFileIsNotDevice):
		e.Err, e.Cure = ErrNoDevice, "name a TPM device like /dev/tpmrm0, or the socket of a software TPM"
	default:
		e.Cure = "check its path"
	}
	return e
}
