package apiserver

import (
	"crypto/subtle"
	"errors"
	"net/http"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/sigv4"
)

// verifier is the project's own SigV4 verifier over a fixed set of access keys.
type verifier struct {
	v    *sigv4.Verifier
	keys map[string]AccessKey
}

func newAuthenticator(o Options) authenticator {
	if len(o.AccessKeys) == 0 {
		return noKeys{}
	}
	a := &verifier{keys: o.AccessKeys}
	a.v = &sigv4.Verifier{
		Region:            o.Region,
		Service:           o.Service,
		Lookup:            a.lookup,
		CheckSessionToken: a.checkToken,
	}
	return a
}

func (a *verifier) verify(r *http.Request, bodySHA256 string) (AccessKey, error) {
	view, err := signer.FromReceived(r, bodySHA256)
	if err != nil {
		return AccessKey{}, err
	}
	id, err := a.v.Verify(view)
	if err != nil {
		return AccessKey{}, err
	}
	return a.keys[id.AccessKeyID], nil
}

func (a *verifier) lookup(accessKeyID, date, region, service string) ([]byte, sigv4.Identity, error) {
	k, ok := a.keys[accessKeyID]
	if !ok {
		return nil, sigv4.Identity{}, sigv4.ErrUnknownKey
	}
	return sigv4.DeriveKey(k.Secret, date, region, service), sigv4.Identity{User: k.User, Groups: k.Groups}, nil
}

func (a *verifier) checkToken(id sigv4.Identity, token string) error {
	if subtle.ConstantTimeCompare([]byte(token), []byte(a.keys[id.AccessKeyID].SessionToken)) == 0 {
		return sigv4.ErrToken
	}
	return nil
}

// noKeys knows nobody.
type noKeys struct{}

func (noKeys) verify(*http.Request, string) (AccessKey, error) {
	return AccessKey{}, errors.New("this server knows no access key")
}
