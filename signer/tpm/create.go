package tpm

import (
	"context"
	"crypto"
	"crypto/fips140"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	keyfile "github.com/foxboron/go-tpm-keyfiles"
	"github.com/google/go-tpm/tpm2"

	"github.com/execproxy/execproxy/signer"
)

// longestPassword is what a key named with SHA-256 can have.
const longestPassword = 32

// Create makes a key, in a new file or at an empty handle, and opens it. Where Options has a
// Password the key gets it, and the TPM counts wrong ones; a key without a password goes on
// working while the TPM is locked out. It takes up to thirty times the Timeout, and leaves
// nothing behind when it fails.
func Create(ctx context.Context, o Options, a signer.Algorithm) (*Key, error) {
	at, err := o.settle()
	if err != nil {
		return nil, err
	}
	m := &maker{owner: owner{key: &Key{place: at}, home: home{place: at}, o: o}}
	if m.area, err = template(at, a, o.Password != nil); err != nil {
		return nil, err
	}
	if at.file != "" {
		if err := vacant(at); err != nil {
			return nil, err
		}
	}
	if at.handle >= firstPlatform {
		return nil, at.fail(ErrUnsupported, "the handle is not for owners of machines", "choose one up to 0x817fffff")
	}
	if err := m.askNew(ctx); err != nil {
		return nil, err
	}
	defer clear(m.handed)
	limited, cancel := context.WithTimeout(ctx, createTimeouts*o.Timeout)
	defer cancel()
	text, err := m.make(limited)
	if err != nil {
		return nil, err
	}
	var known []byte
	if m.handed != nil {
		known = append(known, m.handed...)
	}
	if at.handle != 0 {
		k, err := open(limited, o, m.home, known)
		if err != nil {
			_ = m.evict(context.WithoutCancel(ctx))
		}
		return k, err
	}
	if m.home.blob, err = parseBlob(at, text); err != nil {
		return nil, err
	}
	k, err := open(limited, o, m.home, known)
	if err != nil {
		return nil, err
	}
	if err := writeNew(at, text); err != nil { // only now: the key works
		_ = k.Close()
		return nil, err
	}
	return k, nil
}

// maker makes one key.
type maker struct {
	owner // for its words about errors; nothing runs
	area  tpm2.TPMTPublic
}

// template is what a new key shall be: one that signs, with any scheme, and does nothing else.
func template(at place, a signer.Algorithm, password bool) (tpm2.TPMTPublic, error) {
	t := tpm2.TPMTPublic{
		NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, SignEncrypt: true,
			NoDA: !password, // others' wrong passwords must not lock a key that has none
		},
	}
	ecc := func(c tpm2.TPMECCCurve) {
		t.Type = tpm2.TPMAlgECC
		t.Parameters = tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{CurveID: c})
	}
	rsa := func(bits tpm2.TPMKeyBits) {
		t.Type = tpm2.TPMAlgRSA
		t.Parameters = tpm2.NewTPMUPublicParms(tpm2.TPMAlgRSA, &tpm2.TPMSRSAParms{KeyBits: bits})
	}
	switch a {
	case signer.ECP256:
		ecc(tpm2.TPMECCNistP256)
	case signer.ECP384:
		ecc(tpm2.TPMECCNistP384)
	case signer.RSA2048:
		rsa(2048)
	case signer.RSA3072:
		rsa(3072)
	default:
		return t, at.fail(ErrUnsupported, fmt.Sprintf("%q is no kind of key", a), fmt.Sprintf("choose one of %v", signer.Algorithms()))
	}
	return t, nil
}

// askNew gets the password of the new key.
func (m *maker) askNew(ctx context.Context) error {
	if m.o.Password == nil {
		return nil
	}
	if fips140.Enforced() {
		return m.home.fail(ErrUnsupported, "a password goes to the TPM encrypted with AES-CFB, which GODEBUG=fips140=only forbids",
			"make the key with GODEBUG=fips140=on, or without a password")
	}
	password, err := m.ask(ctx)
	if err != nil {
		return err
	}
	switch {
	case len(password) == 0:
		return m.home.fail(ErrPassword, "it is empty", "give one, or make the key without")
	case len(password) > longestPassword:
		clear(password)
		return m.home.fail(ErrPassword, fmt.Sprintf("it is longer than the %d bytes that a TPM takes", longestPassword), "choose a shorter one")
	case password[len(password)-1] == 0:
		clear(password)
		return m.home.fail(ErrPassword, "it ends in a zero byte, which TPMs cut off", "choose another one")
	}
	m.handed = password
	return nil
}

// make has the TPM make the key. It returns the file's text, or nil for a handle, where the key
// lies now.
func (m *maker) make(ctx context.Context) (text []byte, err error) {
	t, err := m.o.dial(m.o.Device)
	if err != nil {
		return nil, err
	}
	l := newLine(t)
	defer l.close(closing)
	l.ctx = ctx
	defer func() {
		if err != nil {
			err, _ = m.explain(&loaded{line: l}, err)
		}
	}()
	if m.home.handle != 0 {
		switch _, err := (tpm2.ReadPublic{ObjectHandle: m.home.handle}).Execute(l); {
		case err == nil:
			return nil, m.taken()
		case !is(err, tpm2.TPMRCHandle):
			return nil, err
		}
	}
	up, at, err := m.parent(l)
	if err != nil {
		return nil, err
	}
	defer up.flush(l)
	command := tpm2.Create{ParentHandle: up.AuthHandle, InPublic: tpm2.New2B(m.area)}
	var sessions []tpm2.Session
	if m.handed != nil {
		command.InSensitive = tpm2.TPM2BSensitiveCreate{Sensitive: &tpm2.TPMSSensitiveCreate{UserAuth: tpm2.TPM2BAuth{Buffer: m.handed}}}
		sessions = append(sessions, tpm2.HMAC(tpm2.TPMAlgSHA256, 16,
			tpm2.AESEncryption(128, tpm2.EncryptIn), tpm2.Salted(up.Handle, up.public)))
	}
	made, err := command.Execute(l, sessions...)
	if is(err, tpm2.TPMRCCurve, tpm2.TPMRCKeySize, tpm2.TPMRCValue, tpm2.TPMRCAsymmetric, tpm2.TPMRCType) && !gone(err) {
		return nil, m.home.fail(ErrUnsupported, "this TPM does not make such keys", "choose ec-p256")
	}
	if err != nil {
		return nil, err
	}
	if m.home.handle == 0 {
		return encode(at, made.OutPublic, made.OutPrivate, m.handed), nil
	}
	key, err := tpm2.Load{ParentHandle: up.AuthHandle, InPrivate: made.OutPrivate, InPublic: made.OutPublic}.Execute(l)
	if err != nil {
		return nil, err
	}
	defer flush(l, key.ObjectHandle)
	_, err = tpm2.EvictControl{
		Auth:             tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
		ObjectHandle:     tpm2.NamedHandle{Handle: key.ObjectHandle, Name: key.Name},
		PersistentHandle: m.home.handle,
	}.Execute(l)
	switch {
	case is(err, tpm2.TPMRCNVDefined):
		return nil, m.taken()
	case is(err, tpm2.TPMRCNVSpace):
		return nil, m.home.fail(ErrBusy, "the TPM has no room for another persistent key", "remove one with `tpm2_evictcontrol`, or keep the key in a file")
	case is(err, tpm2.TPMRCBadAuth, tpm2.TPMRCAuthFail):
		return nil, m.home.fail(ErrUnsupported, "the owner hierarchy has a password, without which nothing is kept in the TPM", "keep the key in a file")
	}
	m.home.public = key.Name
	return nil, err
}

func (m *maker) taken() error {
	return m.home.fail(ErrExists, "", "choose another handle: `tpm2_getcap handles-persistent` lists those in use")
}

// parent finds a storage key for the new key: the one that the file format names, or where that
// takes a password the one that the system left for all.
func (m *maker) parent(l *line) (*loadedParent, tpm2.TPMHandle, error) {
	p, err := parent{tpm2.TPMRHOwner, &keyfile.ECCSRK_H2_Template}.load(l)
	if err == nil || !is(err, tpm2.TPMRCBadAuth, tpm2.TPMRCAuthFail, tpm2.TPMRCHierarchy) {
		return p, tpm2.TPMRHOwner, err
	}
	if p, err := (parent{handle: sharedSRK}).load(l); err == nil && p.storage() {
		return p, sharedSRK, nil
	}
	return nil, 0, m.home.fail(ErrUnsupported, "the owner hierarchy has a password, and no storage key lies at 0x81000001",
		"put one there with `tpm2_evictcontrol`, or make the key with tpm2-tools")
}

// evict takes the new key out of the TPM again.
func (m *maker) evict(ctx context.Context) error {
	t, err := m.o.dial(m.o.Device)
	if err != nil {
		return err
	}
	l := newLine(t)
	defer l.close(closing)
	ctx, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	l.ctx = ctx
	return evict(l, m.home.handle, m.home.public)
}

func evict(l *line, handle tpm2.TPMHandle, name tpm2.TPM2BName) error {
	_, err := tpm2.EvictControl{
		Auth:             tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
		ObjectHandle:     tpm2.NamedHandle{Handle: handle, Name: name},
		PersistentHandle: handle,
	}.Execute(l)
	return err
}

// vacant tells early that a file could not be written.
func vacant(at place) error {
	_, err := os.Lstat(at.file)
	switch {
	case err == nil:
		return at.fail(ErrExists, "", "choose another path, or remove it: its key would be lost")
	case !errors.Is(err, fs.ErrNotExist):
		return at.fail(fmt.Errorf("%w: %w", ErrUnwritable, plain(err)), "", "check the path")
	}
	if info, err := os.Stat(filepath.Dir(at.file)); err != nil || !info.IsDir() {
		return at.fail(ErrUnwritable, "its directory does not exist", "make it with `mkdir -m 700 -p "+filepath.Dir(at.file)+"`")
	}
	return nil
}

// writeNew writes a file that is whole from the beginning, and never in the place of another.
func writeNew(at place, text []byte) (err error) {
	fail := func(err error) error {
		if errors.Is(err, fs.ErrExist) {
			return at.fail(ErrExists, "", "choose another path, or remove it: its key would be lost")
		}
		var link *os.LinkError
		if errors.As(err, &link) {
			err = link.Err
		}
		return at.fail(fmt.Errorf("%w: %w", ErrUnwritable, plain(err)), "", "check the directory's owner, mode and space")
	}
	f, err := os.CreateTemp(filepath.Dir(at.file), ".tpm-key-*") // mode 0600
	if err != nil {
		return fail(err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return fail(err)
	}
	err = os.Link(f.Name(), at.file) // unlike rename(2), fails where something is
	if err == nil || errors.Is(err, fs.ErrExist) {
		if err != nil {
			return fail(err)
		}
		return nil
	}
	// No hard links here, as on FAT: then in place.
	f, err = os.OpenFile(at.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fail(err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		_ = os.Remove(at.file)
		return fail(err)
	}
	return nil
}

// Destroy removes the key from its file or handle, for ever, and closes it. It refuses where
// another key lies there now.
func (k *Key) Destroy(ctx context.Context) error {
	if k.place.file != "" {
		b, err := readBlob(k.place)
		if err != nil {
			return err
		}
		if !b.key.(interface{ Equal(crypto.PublicKey) bool }).Equal(k.public) {
			return k.fail(ErrOtherTPM, "another key lies there now", "")
		}
		if err := os.Remove(k.place.file); err != nil {
			return k.fail(fmt.Errorf("%w: %w", ErrUnwritable, plain(err)), "it cannot be removed", "remove it by hand")
		}
		return k.Close()
	}
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	_, err := k.do(ctx, k.timeout, func(ctx context.Context) ([]byte, error) { return nil, k.owner.evict(ctx) })
	if err != nil {
		return err
	}
	return k.Close()
}

func (w *owner) evict(ctx context.Context) error {
	l, err := w.get(ctx)
	if err != nil {
		return err
	}
	err = evict(l.line, l.key.Handle, l.key.Name)
	if is(err, tpm2.TPMRCBadAuth, tpm2.TPMRCAuthFail) {
		return w.home.fail(ErrUnsupported, "the owner hierarchy has a password", "remove it with `tpm2_evictcontrol`")
	}
	if err != nil {
		err, _ = w.explain(l, err)
	}
	return err
}
