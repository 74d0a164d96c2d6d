package tpm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

// code is the response code in err, 0 for none (TPM 2.0 Library, part 2, section 6.6).
func code(err error) tpm2.TPMRC {
	var rc tpm2.TPMRC
	if errors.As(err, &rc) {
		return rc
	}
	return 0
}

// is tells whether the TPM answered with one of the codes, whatever they are about.
func is(err error, codes ...tpm2.TPMRC) bool {
	rc := code(err)
	for _, c := range codes {
		if rc != 0 && rc.Is(c) {
			return true
		}
	}
	return false
}

// about tells whether a code concerns the session (with the authorization in it) or handle
// of that number, counted from 1.
func about(err error, session bool, n int) bool {
	var f tpm2.TPMFmt1Error
	rc := code(err)
	if rc == 0 || !rc.As(&f) {
		return false
	}
	ok, i := f.Handle()
	if session {
		ok, i = f.Session()
	}
	return ok && i == n
}

// refused tells whether the TPM took the authorization of the first handle for wrong.
func refused(err error) bool {
	return is(err, tpm2.TPMRCAuthFail, tpm2.TPMRCBadAuth) && about(err, true, 1)
}

// gone tells whether the TPM does not know the handles any more that it once gave us: it was
// restarted, or another program flushed them.
func gone(err error) bool {
	switch rc := code(err); {
	case rc == 0:
		return false
	case rc >= tpm2.TPMRCReferenceH0 && rc <= tpm2.TPMRCReferenceH6,
		rc >= tpm2.TPMRCReferenceS0 && rc <= tpm2.TPMRCReferenceS6,
		rc == tpm2.TPMRCInitialize, rc == tpm2.TPMRCReboot:
		return true
	}
	return is(err, tpm2.TPMRCHandle) || is(err, tpm2.TPMRCValue) && (about(err, false, 1) || about(err, true, 1))
}

// full tells whether the TPM has no slot left.
func full(err error) bool {
	return is(err, tpm2.TPMRCObjectMemory, tpm2.TPMRCSessionMemory, tpm2.TPMRCMemory,
		tpm2.TPMRCObjectHandles, tpm2.TPMRCSessionHandles)
}

// again tells whether an answer asks for the same command once more. The TPM has not run it,
// so the nonces of its session still hold.
func again(answer []byte) bool {
	if len(answer) < headerSize {
		return false
	}
	switch tpm2.TPMRC(binary.BigEndian.Uint32(answer[6:])) {
	case tpm2.TPMRCRetry, tpm2.TPMRCYielded, tpm2.TPMRCTesting, tpm2.TPMRCNVRate, tpm2.TPMRCNVUnavailable:
		return true
	}
	return false
}

// property reads one number of the TPM's.
func property(t transport.TPM, p tpm2.TPMPT) (uint32, error) {
	rsp, err := tpm2.GetCapability{Capability: tpm2.TPMCapTPMProperties, Property: uint32(p), PropertyCount: 1}.Execute(t)
	if err != nil {
		return 0, err
	}
	all, err := rsp.CapabilityData.Data.TPMProperties()
	if err != nil {
		return 0, err
	}
	if len(all.TPMProperty) == 0 || all.TPMProperty[0].Property != p {
		return 0, fmt.Errorf("the TPM has no property 0x%x", uint32(p))
	}
	return all.TPMProperty[0].Value, nil
}

// lockout says when the TPM takes passwords again, and what mends it at once.
func lockout(t transport.TPM) (detail, cure string) {
	const clear = "`tpm2_dictionarylockout --clear-lockout`"
	every, err := property(t, tpm2.TPMPTLockoutInterval)
	switch {
	case err != nil:
		return "too many wrong passwords", "wait, or clear it with " + clear
	case every == 0:
		return "too many wrong passwords", "clear it with " + clear
	}
	return "too many wrong passwords", fmt.Sprintf("wait: the TPM forgets one wrong password every %v; or clear it with %s",
		time.Duration(every)*time.Second, clear)
}

// triesLeft says how many passwords the TPM will still look at; "" if it does not tell.
func triesLeft(t transport.TPM) string {
	failed, err := property(t, tpm2.TPMPTLockoutCounter)
	if err != nil {
		return ""
	}
	most, err := property(t, tpm2.TPMPTMaxAuthFail)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("the TPM locks itself after %d more", max(most, failed)-failed)
}
