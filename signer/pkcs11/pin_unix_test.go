//go:build unix

package pkcs11

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/execproxy/execproxy/signer"
)

func TestWrongPIN(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	h.clearLog()
	pin := &secret{pin: "9999"}
	with := func(o *Options) { o.PIN = pin }
	err := h.openErr(testKey, with)
	if !errors.Is(err, ErrPIN) || !strings.HasPrefix(err.Error(), "token main: the PIN was refused: CKR_PIN_INCORRECT (0xA0): ") || strings.Contains(err.Error(), "9999") {
		t.Errorf("got %v", err)
	}
	if pin.accepted != 0 {
		t.Error("a wrong PIN was accepted")
	}
	asked, refused := pin.counts()
	if n := len(h.calls("C_Login")); n != 1 || asked != 1 || refused != 1 {
		t.Errorf("C_Login %d times, asked for a PIN %d times, %d times refused: want one of each", n, asked, refused)
	}

	// It becomes wrong while the key is open.
	pin.set(userPIN)
	k := h.open(testKey, with)
	if pin.accepted != 1 {
		t.Errorf("%d times told that the PIN was right, want 1", pin.accepted)
	}
	pin.set("9999")
	h.clearLog()
	h.fault("C_SignInit.once", "101")
	for range 3 {
		if err := sign(k); !errors.Is(err, ErrPIN) {
			t.Errorf("got %v, want %v", err, ErrPIN)
		}
		k.mu.Lock()
		k.again = k.again.Add(-lastHold) // the hold is over
		k.mu.Unlock()
	}
	_, refused = pin.counts()
	if n := len(h.calls("C_Login")); n != 1 || refused != 2 {
		t.Errorf("C_Login %d times, %d refused: the same PIN must not be tried twice", n, refused)
	}
	pin.set(userPIN)
	until(t, "the right PIN opens it again", func() bool { return sign(k) == nil })
	if n := len(h.calls("C_Login")); n != 2 {
		t.Errorf("C_Login %d times, want 2", n)
	}
}

// TestPINForEachSignature: a key that wants the PIN each time, and refuses it at one.
func TestPINForEachSignature(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", "")
	h.tool("--token-label", "main", "--keypairgen", "--key-type", "EC:prime256v1", "--label", "test", "--id", "01", "--always-auth")
	pin := &secret{pin: userPIN}
	k := h.open(testKey, func(o *Options) { o.PIN = pin })
	h.clearLog()
	h.fault("C_Login", "A0")
	for range 3 {
		if err := sign(k); !errors.Is(err, ErrPIN) {
			t.Errorf("got %v, want %v", err, ErrPIN)
		}
		k.mu.Lock()
		k.again = k.again.Add(-lastHold)
		k.mu.Unlock()
	}
	if n := len(h.calls("C_Login")); n != 1 {
		t.Errorf("C_Login %d times, want once", n)
	}
	if _, refused := pin.counts(); refused != 1 {
		t.Errorf("refused %d times", refused)
	}
}

func TestLockedPIN(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	for _, tc := range []struct {
		name, fault, value string
		human              bool
		want               error
		logins             int
	}{
		{"locked, as its flags say", "token-flags", "40000", false, ErrPINLocked, 0},
		{"locked, as it says when asked", "C_Login", "A4", false, ErrPINLocked, 1},
		{"one try left", "token-flags", "20000", false, ErrPINLastTry, 0},
		{"one try left, and a human typed it", "token-flags", "20000", true, nil, 1},
		{"few tries left", "token-flags", "10000", false, nil, 1},
		{"expired", "C_Login", "A3", false, ErrPIN, 1},
		{"never set", "C_Login", "102", false, ErrPINNeeded, 1},
		{"too long", "C_Login", "A2", false, ErrPIN, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := *h
			h.t = t
			h.clearLog()
			h.fault(tc.fault, tc.value)
			defer h.mend(tc.fault)
			pin := &secret{pin: userPIN, human: tc.human}
			o := h.options(testKey)
			o.PIN = pin
			k, err := Open(h.context(), o)
			if err == nil {
				err = errors.Join(sign(k), k.Close())
			}
			if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if n := len(h.calls("C_Login")); n != tc.logins {
				t.Errorf("C_Login %d times, want %d", n, tc.logins)
			}
			if asked, _ := pin.counts(); asked != tc.logins {
				t.Errorf("asked for the PIN %d times, want %d", asked, tc.logins)
			}
			if err != nil && (strings.Contains(err.Error(), userPIN) || !strings.HasPrefix(err.Error(), "token main: ")) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestLockedWhileOpen: a token that says once that its PIN is locked is not asked again.
func TestLockedWhileOpen(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	k := h.open(testKey)
	h.clearLog()
	h.fault("C_SignInit.once", "101")
	h.fault("C_Login", "A4")
	for range 3 {
		if err := sign(k); !errors.Is(err, ErrPINLocked) {
			t.Errorf("got %v, want %v", err, ErrPINLocked)
		}
		k.mu.Lock()
		k.again = k.again.Add(-lastHold)
		k.mu.Unlock()
	}
	if n := len(h.calls("C_Login")); n != 1 {
		t.Errorf("C_Login %d times, want once", n)
	}
}

// TestNoPINToBeHad: the error of the source is handed on, and the token not asked.
func TestNoPINToBeHad(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	h.clearLog()
	want := errors.New("PIN file /x: is readable by others: chmod 600 /x")
	err := h.openErr(testKey, func(o *Options) { o.PIN = failing{want} })
	if err != want { // it says of what
		t.Errorf("got %v, want %v", err, want)
	}
	if n := len(h.calls("C_Login")); n != 0 {
		t.Errorf("C_Login %d times", n)
	}
}

type failing struct{ err error }

func (f failing) Secret(context.Context) ([]byte, error) { return nil, f.err }
func (f failing) Refused()                               {}
