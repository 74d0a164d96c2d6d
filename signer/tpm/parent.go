package tpm

import (
	"fmt"

	keyfile "github.com/foxboron/go-tpm-keyfiles"
	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

// sharedSRK is where systems leave a storage key for everybody.
const sharedSRK = tpm2.TPMHandle(0x81000001)

// parent is a storage key that others lie under: one at a persistent handle, or the primary
// key that a hierarchy makes of a template.
type parent struct {
	handle   tpm2.TPMHandle
	template *tpm2.TPMTPublic // nil for a persistent handle
}

// loadedParent is one in the TPM.
type loadedParent struct {
	tpm2.AuthHandle
	public    tpm2.TPMTPublic
	transient bool
}

// parents are those that a file may mean by its parent, the likely and the fast first.
//
// The format says that a hierarchy means the ECC template with empty unique fields. But
// tpm2-tools write the hierarchy whatever primary key there was: TCG's with zeros, their own
// default (which lacks noDA), or RSA, which some TPMs compute for a minute.
func parents(handle tpm2.TPMHandle) []parent {
	switch handle >> 24 {
	case 0x81:
		return []parent{{handle: handle}}
	case 0x80:
		handle = tpm2.TPMRHOwner // a transient handle is gone: it was under the owner's
	}
	ecc, zeros := keyfile.ECCSRK_H2_Template, tpm2.ECCSRKTemplate
	all := []parent{{handle, &ecc}, {handle, &zeros}, {handle, withoutNoDA(ecc)}}
	if handle == tpm2.TPMRHOwner {
		all = append(all, parent{handle: sharedSRK})
	}
	rsa, rsaZeros := tpm2.RSASRKTemplate, tpm2.RSASRKTemplate
	rsa.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{})
	return append(all, parent{handle, &rsa}, parent{handle, &rsaZeros}, parent{handle, withoutNoDA(rsa)})
}

func withoutNoDA(t tpm2.TPMTPublic) *tpm2.TPMTPublic {
	t.ObjectAttributes.NoDA = false
	return &t
}

// load brings the parent into the TPM.
func (p parent) load(t transport.TPM) (*loadedParent, error) {
	if p.template == nil {
		rsp, err := tpm2.ReadPublic{ObjectHandle: p.handle}.Execute(t)
		if err != nil {
			return nil, err
		}
		return newParent(p.handle, rsp.Name, rsp.OutPublic, false)
	}
	rsp, err := tpm2.CreatePrimary{
		PrimaryHandle: tpm2.AuthHandle{Handle: p.handle, Auth: tpm2.PasswordAuth(nil)},
		InPublic:      tpm2.New2B(*p.template),
	}.Execute(t)
	if err != nil {
		return nil, err
	}
	l, err := newParent(rsp.ObjectHandle, rsp.Name, rsp.OutPublic, true)
	if err != nil {
		flush(t, rsp.ObjectHandle)
	}
	return l, err
}

func newParent(handle tpm2.TPMHandle, name tpm2.TPM2BName, public tpm2.TPM2BPublic, transient bool) (*loadedParent, error) {
	area, err := public.Contents()
	if err != nil {
		return nil, fmt.Errorf("storage key 0x%08x: %w", uint32(handle), err)
	}
	return &loadedParent{
		AuthHandle: tpm2.AuthHandle{Handle: handle, Name: name, Auth: tpm2.PasswordAuth(nil)},
		public:     *area, transient: transient,
	}, nil
}

// storage tells whether it can keep others, and decrypt a salt.
func (p *loadedParent) storage() bool {
	a := p.public.ObjectAttributes
	return a.Restricted && a.Decrypt && !a.SignEncrypt && a.UserWithAuth
}

func (p *loadedParent) flush(t transport.TPM) {
	if p != nil && p.transient {
		flush(t, p.Handle)
	}
}

// salt finds a storage key to salt sessions with; nil if there is none.
func salt(t transport.TPM) *loadedParent {
	if p, err := (parent{handle: sharedSRK}).load(t); err == nil && p.storage() {
		return p
	}
	p, err := parent{tpm2.TPMRHOwner, &keyfile.ECCSRK_H2_Template}.load(t)
	if err != nil {
		return nil
	}
	return p
}

// flush takes a handle out of the TPM. There is nothing to be done where that fails: the TPM
// has gone, and the handle with it.
func flush(t transport.TPM, h tpm2.TPMHandle) {
	_, _ = tpm2.FlushContext{FlushHandle: h}.Execute(t)
}
