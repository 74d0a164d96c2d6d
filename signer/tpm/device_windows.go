package tpm

import (
	"fmt"
	"github.com/google/go-tpm/tpm2/transport"
	"github.com/google/go-tpm/tpm2/transport/windowstpm"
)

const (
	privateModes = false
	nonblock     = 0
)

// dial opens the system's TPM through TBS, or the socket of a software TPM.
func dial(device string) (transport.TPMCloser, error) {
	if device != "" {
		return newSocket(device), nil
	}
	t, err := windowstpm.Open()
	if err != nil {
		return nil, &Error{Where: "TPM", Err: fmt.Errorf("%w: %w", ErrNoDevice, err), Cure: "switch it on in the firmware's setup; `Get-Tpm` shows its state"}
	}
	return t, nil
}
