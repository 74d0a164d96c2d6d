package tpm

import (
	"context"
	"crypto"
	"fmt"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

// home knows where a key lies and how to bring it into a TPM.
type home struct {
	place
	blob   *blob          // nil for a handle
	under  *parent        // the one that the file's key was loaded under
	public tpm2.TPM2BName // "" until the key was seen
}

// loaded is the key in the TPM, on one connection, ready to sign.
type loaded struct {
	line      *line
	life      life
	key       tpm2.AuthHandle
	area      tpm2.TPMTPublic
	transient bool
	password  []byte       // what the session holds; wiped with it
	session   tpm2.Session // nil without a password
}

// life is one life of a TPM: handles of another one are not ours.
type life struct{ resets, restarts uint32 }

func lifeOf(t transport.TPM) (life, error) {
	rsp, err := tpm2.ReadClock{}.Execute(t)
	if err != nil {
		return life{}, err
	}
	c := rsp.CurrentTime.ClockInfo
	return life{c.ResetCount, c.RestartCount}, nil
}

// load brings the key into the TPM. The password is nil, or load's from now on.
func (h *home) load(l *line, password []byte) (k *loaded, err error) {
	k = &loaded{line: l, password: password}
	defer func() {
		if err != nil {
			k.flush()
			k = nil
		}
	}()
	if k.life, err = lifeOf(l); err != nil {
		return k, err
	}
	var salted *loadedParent
	defer func() { salted.flush(l) }()
	if h.blob == nil {
		err = h.find(k)
	} else {
		salted, err = h.loadBlob(k)
	}
	if err != nil {
		return k, err
	}
	if len(h.public.Buffer) != 0 && string(h.public.Buffer) != string(k.key.Name.Buffer) {
		return k, h.fail(ErrOtherTPM, "another key lies there now", "make one with `execproxy key create`, or give back the TPM")
	}
	if len(password) == 0 {
		k.key.Auth = tpm2.PasswordAuth(nil)
		return k, nil
	}
	if salted == nil {
		salted = salt(l)
	}
	options := []tpm2.AuthOption{tpm2.Auth(password)}
	if salted != nil {
		options = append(options, tpm2.Salted(salted.Handle, salted.public))
	}
	k.session, _, err = tpm2.HMACSession(l, tpm2.TPMAlgSHA256, 16, options...)
	k.key.Auth = k.session
	return k, err
}

// find reads the public half at a persistent handle.
func (h *home) find(k *loaded) error {
	rsp, err := tpm2.ReadPublic{ObjectHandle: h.handle}.Execute(k.line)
	if is(err, tpm2.TPMRCHandle) {
		return h.fail(ErrNoKey, "the handle is empty", "`tpm2_getcap handles-persistent` lists those in use; make a key with `execproxy key create`")
	}
	if err != nil {
		return err
	}
	area, err := rsp.OutPublic.Contents()
	if err != nil {
		return fmt.Errorf("public half: %w", err)
	}
	k.area, k.key.Handle, k.key.Name = *area, h.handle, rsp.Name
	return nil
}

// loadBlob loads a file's key under its parent, which it returns.
func (h *home) loadBlob(k *loaded) (*loadedParent, error) {
	k.area = h.blob.area
	try := parents(h.blob.parent)
	if h.under != nil {
		try = []parent{*h.under}
	}
	foreign := false
	for i, p := range try {
		up, err := p.load(k.line)
		switch {
		case is(err, tpm2.TPMRCHandle) && len(try) == 1:
			return nil, h.fail(ErrOtherTPM, fmt.Sprintf("nothing lies at its parent 0x%08x", uint32(p.handle)), "use it on the machine it was made on")
		case is(err, tpm2.TPMRCHandle), is(err, tpm2.TPMRCBadAuth, tpm2.TPMRCAuthFail) && i < len(try)-1:
			continue // no shared storage key; or the owner has a password, but there may be one
		case is(err, tpm2.TPMRCBadAuth, tpm2.TPMRCAuthFail) && !foreign:
			return nil, h.fail(ErrUnsupported, "the hierarchy of its parent has a password", "make a key under the storage key at 0x81000001")
		case err != nil && foreign && k.line.ctx.Err() == nil && !full(err):
			continue // this TPM does not know the kind of parent
		case err != nil:
			return nil, err
		}
		rsp, err := tpm2.Load{ParentHandle: up.AuthHandle, InPrivate: h.blob.private, InPublic: h.blob.public}.Execute(k.line)
		if err == nil {
			k.key.Handle, k.key.Name, k.transient = rsp.ObjectHandle, rsp.Name, true
			h.under = &p
			return up, nil
		}
		up.flush(k.line)
		switch {
		case is(err, tpm2.TPMRCIntegrity, tpm2.TPMRCBinding, tpm2.TPMRCSensitive, tpm2.TPMRCSize, tpm2.TPMRCType):
			foreign = true
		case refused(err):
			return nil, h.fail(ErrUnsupported, "its parent has a password", "make a key under one without")
		default:
			return nil, err
		}
	}
	return nil, h.fail(ErrOtherTPM, "this TPM cannot unwrap it", "use it on the machine it was made on, or make a new one with `execproxy key create`")
}

// sign signs a digest.
func (k *loaded) sign(s scheme, digest []byte) ([]byte, error) {
	rsp, err := tpm2.Sign{
		KeyHandle:  k.key,
		Digest:     tpm2.TPM2BDigest{Buffer: digest},
		InScheme:   s.tpm(),
		Validation: tpm2.TPMTTKHashCheck{Tag: tpm2.TPMSTHashCheck},
	}.Execute(k.line)
	if err != nil {
		return nil, err
	}
	return s.encode(rsp.Signature)
}

// flush gives back the slots in the TPM, if they are still ours.
func (k *loaded) flush() {
	defer clear(k.password)
	if k.line.cut || k.session == nil && !k.transient {
		return
	}
	if now, err := lifeOf(k.line); err != nil || now != k.life {
		return
	}
	if k.session != nil {
		flush(k.line, k.session.Handle())
	}
	if k.transient {
		flush(k.line, k.key.Handle)
	}
}

const closing = time.Second // how long the TPM may take for the end

// end is flush in its own time.
func (k *loaded) end() {
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	k.line.ctx = ctx
	k.flush()
}

// selfTest finds out which schemes work, since TPMs differ in hashes, and in the salt of PSS.
func (k *loaded) selfTest(at place, public crypto.PublicKey) (works []scheme, warnings []string, err error) {
	salts := false
	for _, s := range schemesOf(public) {
		h := s.hash.New()
		h.Write([]byte("execproxy self-test"))
		digest := h.Sum(nil)
		sig, err := k.sign(s, digest)
		if is(err, tpm2.TPMRCHash, tpm2.TPMRCScheme, tpm2.TPMRCValue, tpm2.TPMRCSize, tpm2.TPMRCKey) && !gone(err) {
			continue
		}
		if err == nil {
			err = s.verify(public, digest, sig)
		}
		switch err {
		case nil:
			works = append(works, s)
		case errSalt:
			salts = true
		default:
			return nil, nil, err
		}
	}
	pss := false
	for _, s := range works {
		pss = pss || s.alg != tpm2.TPMAlgRSASSA
	}
	if salts {
		warnings = append(warnings, fmt.Sprintf("%s: this TPM salts PSS with another length than TLS 1.3 wants, so PSS is left out", at))
	}
	switch {
	case len(works) == 0:
		return nil, nil, at.fail(ErrUnsupported, "this TPM signs with no scheme of TLS", "make an EC P-256 key with `execproxy key create`")
	case !pss:
		warnings = append(warnings, fmt.Sprintf("%s: signs with PKCS#1 v1.5 alone: servers that want TLS 1.3 refuse it: make an EC P-256 key", at))
	}
	return works, warnings, nil
}
