//go:build unix

package pkcs11

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/pkcs11/module"
	"github.com/execproxy/execproxy/signer/signertest"
)

// TestConformance runs the suite of all key homes. The token is lost as a whole directory.
func TestConformance(t *testing.T) {
	for algorithm, schemes := range map[signer.Algorithm][]tls.SignatureScheme{
		signer.ECP256:  {tls.ECDSAWithP256AndSHA256},
		signer.ECP384:  {tls.ECDSAWithP384AndSHA384},
		signer.RSA2048: {tls.PSSWithSHA256, tls.PSSWithSHA384, tls.PSSWithSHA512, tls.PKCS1WithSHA256, tls.PKCS1WithSHA384, tls.PKCS1WithSHA512},
	} {
		h := newSoftHSM(t)
		h.token("main", algorithm)
		tokens := filepath.Join(h.dir, "tokens")
		signertest.Run(t, signertest.Home{
			Name: string(algorithm),
			Open: func(t *testing.T) signertest.Key {
				k, err := Open(h.context(), h.options("pkcs11:token=main;object=test"))
				check(t, err)
				return k
			},
			Lose:     func(t *testing.T) { check(t, os.Rename(tokens, tokens+"-away")) },
			Return:   func(t *testing.T) { check(t, os.Rename(tokens+"-away", tokens)) },
			Schemes:  schemes,
			Patience: patience,
		})
	}
}

// TestOpen names one key in every way there is.
func TestOpen(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", "")
	h.token("other", signer.ECP384)
	k := h.create("pkcs11:token=main;object=first%20key", signer.ECP256)
	location, public := k.Location(), k.Public().(*ecdsa.PublicKey)
	check(t, k.Close())
	check(t, h.create("pkcs11:token=main;object=second;id=%01%02", signer.ECP256).Close())
	uri, err := ParseURI(location)
	check(t, err)
	if uri.Token() != "main" || uri.Serial() == "" || uri.Object() != "first key" || len(uri.ID()) != 16 {
		t.Errorf("Location is %s: want token, serial, object and id", location)
	}
	if public.Curve != elliptic.P256() {
		t.Errorf("curve %v", public.Curve.Params().Name)
	}
	serial, id := "serial="+uri.Serial(), "id="+escape(string(uri.ID()), "\x00")
	for _, name := range []string{
		location,
		"pkcs11:token=main;object=first%20key",
		"pkcs11:token=main;object=first%20key;type=cert",
		"pkcs11:token=main;" + id,
		"pkcs11:" + serial + ";" + id,
		"pkcs11:" + serial + ";manufacturer=SoftHSM%20project;model=SoftHSM%20v2;object=first%20key",
		"pkcs11:" + serial + ";" + id + "?module-path=" + h.library,
		"pkcs11:" + serial + ";" + id + "?module-name=softhsm2&pin-value=0000", // whoever calls Open reads the PIN
	} {
		k := h.open(name, func(o *Options) {
			if strings.Contains(name, "?module") {
				o.Module = "/nowhere"
			}
		})
		if !public.Equal(k.Public()) {
			t.Errorf("%s: another key", name)
		}
		if err := sign(k); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if want, _, _ := strings.Cut(location, "?"); !strings.HasPrefix(k.Location(), want) || strings.Contains(k.Location(), "pin") {
			t.Errorf("%s: Location %s, want %s", name, k.Location(), want)
		}
		if want := "ECDSA P-256 key at " + k.Location(); fmt.Sprintf("%+v", k) != want {
			t.Errorf("%s: it prints as %+v, want %s", name, k, want)
		}
		if len(k.CertificateChain()) != 0 {
			t.Errorf("%s: a chain out of nowhere", name)
		}
	}
}

// TestOpenRefuses: each error names the thing and the cure, and shows no PIN.
func TestOpenRefuses(t *testing.T) {
	h := newSoftHSM(t)
	h.token("twin", signer.ECP256)
	first := h.open("pkcs11:token=twin").uri.Serial()
	h.token("twin", "")
	h.token("main", signer.ECP256)
	check(t, h.create("pkcs11:token=main;object=double;id=%01", signer.ECP256).Close())
	check(t, h.create("pkcs11:token=main;object=double;id=%02", signer.ECP256).Close())
	text := filepath.Join(h.dir, "text.so")
	check(t, os.WriteFile(text, []byte("no library"), 0o600))
	library := func(path string) func(*Options) { return func(o *Options) { o.Module = path } }
	child := func(kind string) func(*Options) {
		return func(o *Options) {
			o.Environ = []string{childVariable + "=" + kind}
			if kind == "silent" || kind == "deaf" {
				o.Timeout = 2 * time.Second
			}
		}
	}
	for _, tc := range []struct {
		name, uri string
		change    func(*Options)
		want      error
		text      []string
	}{
		{"no such file", "pkcs11:token=main", library("/nowhere/lib.so"), ErrModule, []string{"module /nowhere/lib.so: does not load: no such file: ", "module-path="}},
		{"no library", "pkcs11:token=main", library(text), ErrModule, []string{"is no PKCS#11 library for this machine"}},
		{"a directory", "pkcs11:token=main", library(h.dir), ErrModule, []string{"is a directory"}},
		{"not installed", "pkcs11:token=main", library("libnowhere.so"), ErrModule, []string{"module libnowhere.so: does not load: no library of this name"}},
		{"unknown name", "pkcs11:token=main?module-name=nowhere", nil, ErrModule, []string{"module nowhere: ", "module-path="}},
		{"no token", "pkcs11:token=gone", nil, ErrNoToken, []string{"token gone: ", "token=main;serial="}},
		{"two tokens", "pkcs11:token=twin", nil, ErrManyTokens, []string{"token twin: ", "token=twin;serial=" + first, "add ;serial="}},
		{"any token", "pkcs11:object=test", nil, ErrManyTokens, []string{"token=main;serial="}},
		{"no key", "pkcs11:token=main;object=gone", nil, ErrNoKey, []string{"key pkcs11:token=main;object=gone: ", "object=test;id="}},
		{"no key with this id", "pkcs11:token=main;object=test;id=%99", nil, ErrNoKey, nil},
		{"two keys", "pkcs11:token=main;object=double", nil, ErrManyKeys, []string{"object=double;id=%01, object=double;id=%02", "add ;id="}},
		{"no PIN", "pkcs11:token=main;object=test", func(o *Options) { o.PIN = nil }, ErrPINNeeded, []string{"token main: a PIN is needed", "pin-source="}},
		{"another program", "pkcs11:token=main", child("usage"), ErrCrashed, []string{"wrote what is no answer"}},
		{"another version", "pkcs11:token=main", child("old"), ErrCrashed, []string{"another version"}},
		{"a silent program", "pkcs11:token=main", child("silent"), ErrHung, []string{"not within 2s"}},
		{"a deaf program", "pkcs11:token=main", child("deaf"), ErrHung, []string{"not within 2s"}},
		{"no cgo", "pkcs11:token=main", child("nocgo"), ErrNoCGO, []string{"this build has no PKCS#11: ", "CGO_ENABLED=1"}},
		{"nonsense", "pkcs11:token=main", child("nonsense"), nil, []string{"malformed message"}},
		{"no program", "pkcs11:token=main", func(o *Options) { o.Command = []string{"/nowhere/execproxy"} }, ErrCrashed, []string{"cannot be started"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := *h
			h.t = t
			change := tc.change
			if change == nil {
				change = func(*Options) {}
			}
			err := h.openErr(tc.uri, change)
			if tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			for _, text := range tc.text {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("got  %v\nwant %q in it", err, text)
				}
			}
			if strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), userPIN) {
				t.Errorf("got %q: want one line without the PIN", err)
			}
		})
	}
	if n := len(h.calls("C_Login")); n > 20 {
		t.Errorf("%d logins", n)
	}
}

// TestWithoutCGO needs a build without it.
func TestWithoutCGO(t *testing.T) {
	if module.Available() == nil {
		t.Skip("this build has cgo: CGO_ENABLED=0 go test")
	}
	u, err := ParseURI("pkcs11:token=main")
	check(t, err)
	_, err = Open(t.Context(), Options{URI: u, Command: []string{os.Args[0]}, Environ: []string{childVariable + "=module"}, Timeout: patience})
	if !errors.Is(err, ErrNoCGO) || !errors.Is(module.Available(), module.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestOpenModuleFaults(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	for _, tc := range []struct {
		fault, value string
		want         error
	}{
		{"hang-C_Initialize", "", ErrHung},
		{"crash-C_Initialize", "", ErrCrashed},
		{"C_Initialize", "5", ErrLost},
		{"C_GetSlotList", "5", ErrLost},
		{"C_OpenSession", "E0", ErrLost},
		{"hang-C_Login", "", ErrHung},
		{"C_Login", "5", ErrLost},
		{"crash-C_Sign", "", ErrCrashed},
		{"C_Sign", "70", ErrUnsupported},
		{"wrong-signature", "", ErrUnsupported},
		{"C_GetTokenInfo", "E0", ErrNoToken},
	} {
		h.fault(tc.fault, tc.value)
		began := time.Now()
		err := h.openErr("pkcs11:token=main;object=test", func(o *Options) {
			if strings.HasPrefix(tc.fault, "hang") {
				o.Timeout = 3 * time.Second
			}
		})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.fault, err, tc.want)
		}
		t.Logf("%s: %v: %v", tc.fault, time.Since(began).Round(time.Millisecond), err)
		h.mend(tc.fault)
	}
	k := h.open("pkcs11:token=main;object=test")
	check(t, sign(k))
}

// TestOpenCancelled: the caller gives up, and nothing stays.
func TestOpenCancelled(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.ECP256)
	h.clearLog()
	h.fault("hang-C_Initialize", "")
	ctx, cancel := context.WithCancel(context.Background())
	errs := make(chan error)
	go func() {
		_, err := Open(ctx, h.options("pkcs11:token=main;object=test"))
		errs <- err
	}()
	until(t, "the module hangs", func() bool { return len(h.calls("hang")) > 0 })
	cancel()
	err := <-errs
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "pkcs11:token=main;object=test") {
		t.Errorf("got %v", err)
	}
	if _, err := Open(ctx, h.options("pkcs11:token=main")); !errors.Is(err, context.Canceled) {
		t.Errorf("with a dead context: %v", err)
	}
}

func TestCreate(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", "")
	for _, a := range signer.Algorithms() {
		uri := "pkcs11:token=main;object=" + string(a)
		k := h.create(uri, a)
		check(t, sign(k))
		bits, kind := 0, ""
		switch p := k.Public().(type) {
		case *ecdsa.PublicKey:
			bits, kind = p.Curve.Params().BitSize, "ec-p"
		case *rsa.PublicKey:
			bits, kind = p.N.BitLen(), "rsa-"
		}
		if got := fmt.Sprintf("%s%d", kind, bits); got != string(a) {
			t.Errorf("asked for %s, got %s", a, got)
		}
		check(t, k.Close())
		_, err := Create(h.context(), h.options(uri), a)
		if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "object="+string(a)) {
			t.Errorf("a second time: %v", err)
		}
	}
	// A renewal with a new key: the same label, another id.
	k := h.create("pkcs11:token=main;object=ec-p256;id=%05", signer.ECP256)
	check(t, k.Close())
	if _, err := Create(h.context(), h.options("pkcs11:token=main;object=x;id=%05"), signer.ECP256); !errors.Is(err, ErrExists) {
		t.Errorf("an id that is taken: %v", err)
	}
	if out := h.tool("--token-label", "main", "--list-objects", "--type", "privkey"); strings.Count(out, "sensitive, always sensitive, never extractable") != 5 || strings.Contains(out, "decrypt") {
		t.Errorf("want keys that never leave the token and only sign:\n%s", out)
	}
	for uri, want := range map[string]error{"pkcs11:token=main": ErrURI, "pkcs11:token=gone;object=x": ErrNoToken} {
		if _, err := Create(h.context(), h.options(uri), signer.ECP256); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", uri, err, want)
		}
	}
	if _, err := Create(h.context(), h.options("pkcs11:token=main;object=x"), "dsa"); err == nil {
		t.Error("made a key of an unknown kind")
	}
	o := h.options("pkcs11:token=main;object=x")
	o.PIN = nil
	if _, err := Create(h.context(), o, signer.ECP256); !errors.Is(err, ErrPINNeeded) {
		t.Errorf("without a PIN: %v", err)
	}
	// A key that does not work does not stay.
	h.fault("wrong-signature", "")
	if _, err := Create(h.context(), h.options("pkcs11:token=main;object=bad"), signer.ECP256); !errors.Is(err, ErrUnsupported) {
		t.Errorf("a token that signs wrongly: %v", err)
	}
	h.mend("wrong-signature")
	if err := h.openErr("pkcs11:token=main;object=bad"); !errors.Is(err, ErrNoKey) {
		t.Errorf("the key that does not work stayed: %v", err)
	}
}

// TestSchemes: what the token cannot do is not claimed.
func TestSchemes(t *testing.T) {
	h := newSoftHSM(t)
	h.token("main", signer.RSA2048)
	h.fault("no-mechanism", "d") // CKM_RSA_PKCS_PSS
	k := h.open("pkcs11:token=main;object=test")
	if got := k.SupportedSignatureAlgorithms(); !slices.Equal(got, []tls.SignatureScheme{tls.PKCS1WithSHA256, tls.PKCS1WithSHA384, tls.PKCS1WithSHA512}) {
		t.Errorf("without PSS: %v", got)
	}
	h.fault("no-mechanism", "1") // CKM_RSA_PKCS
	k = h.open("pkcs11:token=main;object=test")
	if got := k.SupportedSignatureAlgorithms(); !slices.Equal(got, []tls.SignatureScheme{tls.PSSWithSHA256, tls.PSSWithSHA384, tls.PSSWithSHA512}) {
		t.Errorf("without PKCS #1 v1.5: %v", got)
	}
	if err := sign(k); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "CKR_MECHANISM_INVALID") {
		t.Errorf("a scheme that the token lacks: %v", err)
	}
	if s := k.Stats(); s.Reopened != 0 {
		t.Errorf("it was opened again %d times for what no opening mends", s.Reopened)
	}
}

// TestProxyModule: without a module the key is found through p11-kit's, to which each
// C_GetFunctionList is an application of its own.
func TestProxyModule(t *testing.T) {
	h := newSoftHSM(t)
	if _, err := os.Stat("/usr/share/p11-kit/modules/softhsm2.module"); err != nil {
		missing(t, "SoftHSM's p11-kit module configuration", "softhsm2 p11-kit p11-kit-modules")
	}
	h.token("main", "")
	o := h.options("pkcs11:token=main;object=test")
	o.Module = ""
	k, err := Create(h.context(), o, signer.RSA2048)
	check(t, err)
	parallel(t, k, 8, 2)
	check(t, k.StoreCertificate(t.Context(), [][]byte{issue(t, "x", k.Public(), time.Now(), nil, k).Raw}))
	if len(k.SupportedSignatureAlgorithms()) != 6 {
		t.Errorf("schemes %v", k.SupportedSignatureAlgorithms())
	}
	check(t, k.Destroy(t.Context()))
}
