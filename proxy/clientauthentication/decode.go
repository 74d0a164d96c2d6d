package clientauthentication

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sync"
)

// MaxInfo and MaxAnswer are how many bytes a document may have. Linux itself takes no
// more than 128 KiB in one environment variable.
const (
	MaxInfo   = 1 << 20
	MaxAnswer = 1 << 20
)

// ErrNoInfo says that KUBERNETES_EXEC_INFO is not set or empty. Some clients never set
// it (JavaScript, Java); run by hand it is not there either.
var ErrNoInfo = errors.New(InfoVariable + " is not set: a Kubernetes client sets it; " +
	"for one that does not, or to run the plugin by hand, say everything with flags")

// DecodeInfo reads what a client asks: the value of KUBERNETES_EXEC_INFO. It must be
// exactly one document, version v1 or v1beta1. The Kind of the result is always
// [Kind], and Status is nil whatever was sent.
//
// Empty data gives [ErrNoInfo]. No error repeats what was read.
func DecodeInfo(data []byte) (*ExecCredential, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, ErrNoInfo
	}
	fail := func(err error) (*ExecCredential, error) {
		return nil, fmt.Errorf("reading %s: %w", InfoVariable, err)
	}
	if len(data) > MaxInfo {
		return fail(fmt.Errorf("it has %d bytes, more than %d: make the cluster's extension or CA bundle smaller", len(data), MaxInfo))
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	var c struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Spec       Spec   `json:"spec"`
	}
	if err := dec.Decode(&c); err != nil {
		return fail(broken(err))
	}
	if rest := data[dec.InputOffset():]; len(bytes.TrimSpace(rest)) != 0 {
		return fail(fmt.Errorf("there is something behind the document, at byte %d: it must hold one document", dec.InputOffset()))
	}
	if err := checkVersion(c.APIVersion); err != nil {
		return fail(err)
	}
	if c.Kind != Kind && c.Kind != Kind+"s" {
		return fail(errors.New("kind is not " + Kind + ": it must be what a Kubernetes client sets"))
	}
	if cluster := c.Spec.Cluster; cluster != nil && bytes.Equal(cluster.Config, []byte("null")) {
		cluster.Config = nil
	}
	return &ExecCredential{APIVersion: c.APIVersion, Kind: Kind, Spec: c.Spec}, nil
}

// DecodeAnswer reads what a plugin answers: the first document of a stream. It returns
// as soon as that document is complete, without waiting for the stream to end: a
// plugin may go on running. Spec is left empty.
//
// A stream that ends before anything else came gives [io.EOF], wrapped. What the
// reader fails with is wrapped as well. No error repeats what was read.
func DecodeAnswer(r io.Reader) (*ExecCredential, error) {
	limited := &io.LimitedReader{R: r, N: MaxAnswer + 1}
	watched := &watchedReader{r: limited}
	var c struct {
		APIVersion string  `json:"apiVersion"`
		Kind       string  `json:"kind"`
		Status     *Status `json:"status"`
	}
	fail := func(err error) (*ExecCredential, error) {
		return nil, fmt.Errorf("reading the plugin's answer: %w", err)
	}
	if err := json.NewDecoder(watched).Decode(&c); err != nil {
		switch {
		case limited.N <= 0:
			return fail(fmt.Errorf("it has more than %d bytes", MaxAnswer))
		case watched.err != nil && watched.err != io.EOF:
			return fail(watched.err)
		case errors.Is(err, io.EOF):
			return fail(emptyError{})
		}
		return fail(broken(err))
	}
	if err := checkVersion(c.APIVersion); err != nil {
		return fail(err)
	}
	if c.Kind != Kind {
		return fail(errors.New("kind is not " + Kind))
	}
	if c.Status == nil {
		return fail(errors.New("it has no status, hence no credential"))
	}
	if err := c.Status.check(); err != nil {
		return fail(err)
	}
	return &ExecCredential{APIVersion: c.APIVersion, Kind: Kind, Status: c.Status}, nil
}

// emptyError is [io.EOF] in words.
type emptyError struct{}

func (emptyError) Error() string { return "stdout is empty" }
func (emptyError) Unwrap() error { return io.EOF }

// watchedReader remembers what its reader failed with: a json.Decoder may tell a
// broken stream as a broken document.
type watchedReader struct {
	r   io.Reader
	err error
}

func (w *watchedReader) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

// ours matches an apiVersion that may be repeated in an error: it holds nothing but a
// version.
var ours = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^client\.authentication\.k8s\.io/[a-z0-9]{1,16}$`) })

func checkVersion(v string) error {
	switch {
	case v == V1 || v == V1Beta1:
		return nil
	case ours().MatchString(v):
		return fmt.Errorf("apiVersion %s is not supported: set %s or %s in the kubeconfig's exec section", v, V1, V1Beta1)
	case v == "":
		return fmt.Errorf("it has no apiVersion: it must be %s or %s", V1, V1Beta1)
	}
	return fmt.Errorf("apiVersion is neither %s nor %s", V1, V1Beta1)
}

// broken describes what encoding/json found without the text it found it in.
func broken(err error) error {
	var syntax *json.SyntaxError
	var mistyped *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("it is not JSON, at byte %d", syntax.Offset)
	case errors.As(err, &mistyped) && mistyped.Field != "":
		return fmt.Errorf("its field %s has the wrong type", mistyped.Field)
	case errors.As(err, &mistyped):
		return errors.New("it is not a JSON object")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("it ends in the middle of a document")
	}
	return errors.New("a field of it has a value that cannot be read: a time must be RFC 3339, data must be base64")
}
