package enroll

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	maxBody   = 1 << 20 // of an answer, or of one event
	maxItems  = 64      // of any list in it
	maxEvents = 1000    // of one watch: a request has a handful in all its life
)

var errTooLarge = errors.New("the answer is larger than 1 MiB")

// object is certificates.k8s.io/v1 CertificateSigningRequest, as much of it as is of use.
type object struct {
	APIVersion string   `json:"apiVersion,omitempty"`
	Kind       string   `json:"kind,omitempty"`
	Metadata   metadata `json:"metadata"`
	Spec       spec     `json:"spec"`
	Status     status   `json:"status,omitzero"`
}

type metadata struct {
	Name              string    `json:"name,omitempty"`
	UID               string    `json:"uid,omitempty"`
	ResourceVersion   string    `json:"resourceVersion,omitempty"`
	CreationTimestamp time.Time `json:"creationTimestamp,omitzero"`
}

type spec struct {
	Request           []byte      `json:"request"`
	SignerName        string      `json:"signerName"`
	ExpirationSeconds *int32      `json:"expirationSeconds,omitempty"`
	Usages            few[string] `json:"usages"`
}

type status struct {
	Conditions  few[condition] `json:"conditions,omitempty"`
	Certificate []byte         `json:"certificate,omitempty"`
}

type condition struct {
	Type           string    `json:"type"`
	Status         string    `json:"status"`
	Reason         string    `json:"reason"`
	Message        string    `json:"message"`
	LastUpdateTime time.Time `json:"lastUpdateTime,omitzero"`
}

const (
	conditionApproved = "Approved"
	conditionDenied   = "Denied"
	conditionFailed   = "Failed"
)

// condition returns the true condition of a type. (For the three types that matter the API
// lets no other than true ones be; v1beta1 had ones without a status.)
func (o *object) condition(kind string) *condition {
	for i, c := range o.Status.Conditions {
		if c.Type == kind && (c.Status == "True" || c.Status == "") {
			return &o.Status.Conditions[i]
		}
	}
	return nil
}

type objectList struct {
	Kind     string      `json:"kind"`
	Metadata metadata    `json:"metadata"`
	Items    few[object] `json:"items"`
}

// apiStatus is metav1.Status.
type apiStatus struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Code    int    `json:"code"`
	Details struct {
		Name              string `json:"name"`
		RetryAfterSeconds int    `json:"retryAfterSeconds"`
	} `json:"details"`
}

// few is a list that stays short: three bytes of JSON must not become a hundred in memory
// as often as a server likes.
type few[T any] []T

func (f *few[T]) UnmarshalJSON(text []byte) error {
	*f = nil
	d := json.NewDecoder(bytes.NewReader(text))
	switch token, err := d.Token(); {
	case err != nil:
		return err
	case token == nil:
		return nil
	case token != json.Delim('['):
		return errors.New("a list was expected")
	}
	for d.More() {
		if len(*f) == maxItems {
			return fmt.Errorf("a list is longer than %d", maxItems)
		}
		var v T
		if err := d.Decode(&v); err != nil {
			return err
		}
		*f = append(*f, v)
	}
	return nil
}

// event is one of a watch: object is set for all types but BOOKMARK and ERROR, status for
// ERROR.
type event struct {
	kind   string
	object *object
	status *apiStatus
}

// events reads those of a watch, one after the other, of any number of bytes in all but
// maxBody in one.
type events struct {
	body  budget
	json  *json.Decoder
	count int
}

func newEvents(r io.Reader) *events {
	e := &events{body: budget{r: r}}
	e.json = json.NewDecoder(&e.body)
	return e
}

// next returns io.EOF where the watch ended between two events.
func (e *events) next() (event, error) {
	if e.count++; e.count > maxEvents {
		return event{}, fmt.Errorf("the watch had more than %d events", maxEvents)
	}
	e.body.left = maxBody
	var raw struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := e.json.Decode(&raw); err != nil {
		return event{}, err
	}
	switch raw.Type {
	case "ADDED", "MODIFIED", "DELETED":
		o := new(object)
		if err := json.Unmarshal(raw.Object, o); err != nil {
			return event{}, fmt.Errorf("event %s: %w", raw.Type, err)
		}
		return event{kind: raw.Type, object: o}, nil
	case "ERROR":
		s := new(apiStatus)
		if err := json.Unmarshal(raw.Object, s); err != nil {
			return event{}, fmt.Errorf("event ERROR: %w", err)
		}
		return event{kind: raw.Type, status: s}, nil
	case "BOOKMARK":
		return event{kind: raw.Type}, nil
	}
	return event{}, fmt.Errorf("event of an unknown type %q", oneLine(raw.Type, 20))
}

// budget reads no more than left bytes.
type budget struct {
	r    io.Reader
	left int
}

func (b *budget) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// readAll reads a whole answer.
func readAll(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = errTooLarge
	}
	return body, err
}
