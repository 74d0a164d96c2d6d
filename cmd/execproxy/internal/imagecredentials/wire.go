// Package imagecredentials answers kubelet's question for an image's registry
// credentials (KEP-2133, KEP-4412): the wire types, what registry an image is
// from, whose credentials are for it, and for how long they may be kept.
package imagecredentials

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sync"
	"time"
)

// The versions of credentialprovider.kubelet.k8s.io that kubelet speaks. A
// service account's token and annotations come in v1 alone.
const (
	V1       = "credentialprovider.kubelet.k8s.io/v1"
	V1Beta1  = "credentialprovider.kubelet.k8s.io/v1beta1"
	V1Alpha1 = "credentialprovider.kubelet.k8s.io/v1alpha1"

	requestKind  = "CredentialProviderRequest"
	responseKind = "CredentialProviderResponse"
)

// MaxRequest bounds a request, in bytes: an image, a token and some annotations.
const MaxRequest = 1 << 20

// A Request is kubelet's CredentialProviderRequest.
type Request struct {
	APIVersion string
	Image      string

	ServiceAccountToken       string
	ServiceAccountAnnotations map[string]string
}

// CacheKeyType tells kubelet what else an answer is good for.
type CacheKeyType string

// What an answer is good for: this one image, or all of its registry.
const (
	CacheImage    CacheKeyType = "Image"
	CacheRegistry CacheKeyType = "Registry"
)

// AuthConfig is one user name and password.
type AuthConfig struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// String keeps a password out of whatever prints it.
func (AuthConfig) String() string { return "credentials (not shown)" }

// GoString is String.
func (a AuthConfig) GoString() string { return a.String() }

// An Answer is what a CredentialProviderResponse says. Auth is nil where we have
// nothing to say about the image. CacheDuration is always sent: without it
// kubelet takes a default of its own, and 0 is not to be kept at all.
type Answer struct {
	CacheKeyType  CacheKeyType          `json:"cacheKeyType"`
	CacheDuration time.Duration         `json:"cacheDuration"`
	Auth          map[string]AuthConfig `json:"auth,omitempty"`
}

// DecodeRequest reads the one document that kubelet writes. Fields it does not
// know are left alone, as a later kubelet may send more in the same version. No
// error repeats what was read.
func DecodeRequest(r io.Reader) (*Request, error) {
	fail := func(format string, a ...any) (*Request, error) {
		return nil, fmt.Errorf("reading the CredentialProviderRequest on standard input: "+format, a...)
	}
	data, err := io.ReadAll(io.LimitReader(r, MaxRequest+1))
	switch {
	case err != nil:
		return fail("%w", err)
	case len(data) > MaxRequest:
		return fail("it has more than %d bytes", MaxRequest)
	case len(bytes.TrimSpace(data)) == 0:
		return fail("it is empty; kubelet runs this, see `execproxy help image-credentials`")
	}
	var d struct {
		APIVersion  string            `json:"apiVersion"`
		Kind        string            `json:"kind"`
		Image       string            `json:"image"`
		Token       string            `json:"serviceAccountToken"`
		Annotations map[string]string `json:"serviceAccountAnnotations"`
	}
	if err := json.Unmarshal(data, &d); err != nil {
		var mistyped *json.UnmarshalTypeError
		if errors.As(err, &mistyped) && mistyped.Field != "" {
			return fail("its field %s has the wrong type", mistyped.Field)
		}
		return fail("it is not one JSON document")
	}
	if err := checkVersion(d.APIVersion); err != nil {
		return fail("%w", err)
	}
	switch {
	case d.Kind != requestKind:
		return fail("kind is not %s", requestKind)
	case d.Image == "":
		return fail("it names no image")
	case d.APIVersion != V1 && (d.Token != "" || len(d.Annotations) > 0):
		return fail("a service account's token and annotations belong to %s alone", V1)
	}
	return &Request{
		APIVersion: d.APIVersion, Image: d.Image,
		ServiceAccountToken: d.Token, ServiceAccountAnnotations: d.Annotations,
	}, nil
}

// ours matches an apiVersion that may be repeated in an error.
var ours = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^credentialprovider\.kubelet\.k8s\.io/[a-z0-9]{1,16}$`)
})

func checkVersion(v string) error {
	const cure = "set apiVersion of the provider in kubelet's CredentialProviderConfig to " + V1
	switch {
	case slices.Contains([]string{V1, V1Beta1, V1Alpha1}, v):
		return nil
	case ours().MatchString(v):
		return fmt.Errorf("apiVersion %s is not supported; %s", v, cure)
	}
	return errors.New("apiVersion is none of credentialprovider.kubelet.k8s.io; " + cure)
}

// Encode is the CredentialProviderResponse in a version, with exactly the fields
// that kubelet knows: it decodes strictly.
func (a *Answer) Encode(apiVersion string) ([]byte, error) {
	data, err := json.Marshal(struct {
		APIVersion    string                `json:"apiVersion"`
		Kind          string                `json:"kind"`
		CacheKeyType  CacheKeyType          `json:"cacheKeyType"`
		CacheDuration string                `json:"cacheDuration"` // as metav1.Duration
		Auth          map[string]AuthConfig `json:"auth"`
	}{apiVersion, responseKind, a.CacheKeyType, a.CacheDuration.Truncate(time.Second).String(), a.Auth})
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}
