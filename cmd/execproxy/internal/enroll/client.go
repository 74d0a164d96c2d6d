package enroll

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	// exchange bounds one request and its answer.
	exchange = 30 * time.Second
	// tries bounds how often one is made, where the server asks for patience.
	tries = 5
	// longestRest bounds the patience a server may ask for at a time.
	longestRest = time.Minute
)

// Client speaks certificates.k8s.io/v1 with one API server.
type Client struct {
	Server    *url.URL // of the API, maybe with a path before /apis
	Transport http.RoundTripper
}

const collection = "apis/certificates.k8s.io/v1/certificatesigningrequests"

// A call is one exchange with the API.
type call struct {
	action string // what is done, for errors
	method string
	name   string // of the object; "" for the collection
	query  url.Values
	body   []byte
}

// create, read and list are the API's verbs.
func (c *Client) create(ctx context.Context, o *object) (*object, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	got := new(object)
	err = c.patient(ctx, call{action: "creating certificate signing request " + o.Metadata.Name, method: http.MethodPost, body: body}, got)
	return got, err
}

func (c *Client) read(ctx context.Context, name string) (*object, error) {
	got := new(object)
	return got, c.exchange(ctx, call{action: "reading certificate signing request " + name, method: http.MethodGet, name: name}, got)
}

func (c *Client) list(ctx context.Context, name string) (*objectList, error) {
	got := new(objectList)
	query := url.Values{"fieldSelector": {"metadata.name=" + name}}
	return got, c.exchange(ctx, call{action: "listing certificate signing request " + name, method: http.MethodGet, query: query}, got)
}

// patient makes a call again while the server says that it is for now only.
func (c *Client) patient(ctx context.Context, k call, into any) error {
	var b backoff
	for try := 1; ; try++ {
		err := c.exchange(ctx, k, into)
		var refusal *APIError
		if err == nil || try == tries || !errors.As(err, &refusal) || !refusal.temporary() {
			return err
		}
		if pause(ctx, max(b.next(), min(refusal.retryAfter, longestRest))) != nil {
			return err
		}
	}
}

// exchange makes a call and decodes its answer.
func (c *Client) exchange(ctx context.Context, k call, into any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, exchange, fmt.Errorf("no answer within %v", exchange))
	defer cancel()
	res, err := c.send(ctx, k)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := readAll(res.Body)
	if err != nil {
		return c.broken(ctx, k, err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return c.stranger(k, res.StatusCode, err)
	}
	return nil
}

// send makes a call. What it returns is a success whose body the caller closes.
func (c *Client) send(ctx context.Context, k call) (*http.Response, error) {
	u := c.Server.JoinPath(collection, url.PathEscape(k.name))
	if k.name == "" {
		u = c.Server.JoinPath(collection)
	}
	u.RawQuery = k.query.Encode()
	req, err := http.NewRequestWithContext(ctx, k.method, u.String(), bytes.NewReader(k.body))
	if err != nil {
		return nil, err
	}
	if k.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "execproxy")
	// No http.Client: it would follow a redirect to wherever, with our identity.
	res, err := c.Transport.RoundTrip(req)
	if err != nil {
		return nil, c.broken(ctx, k, err)
	}
	switch res.StatusCode {
	case http.StatusOK, http.StatusCreated, http.StatusAccepted:
		return res, nil
	}
	defer func() { _ = res.Body.Close() }()
	return nil, c.refusal(k, res)
}

// refusal makes an error of an answer that is no success.
func (c *Client) refusal(k call, res *http.Response) error {
	e := &APIError{Server: c.Server.Host, Action: k.action, Status: res.StatusCode}
	if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		e.retryAfter = seconds(n)
	} else if t, err := http.ParseTime(res.Header.Get("Retry-After")); err == nil {
		e.retryAfter = max(time.Until(t), 0)
	}
	// What cannot be read says nothing; the code still does.
	body, _ := readAll(res.Body)
	var s apiStatus
	text := ""
	if json.Unmarshal(body, &s) == nil && s.Kind == "Status" {
		e.fill(&s)
		text = s.Message
	} else if t, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); t == "text/plain" {
		text = string(body)
	}
	if e.Message = oneLine(text, 300); e.Message == "" {
		e.Message = strings.ToLower(http.StatusText(res.StatusCode))
	}
	e.Cure = cure(e.Status, text)
	return e
}

func (e *APIError) fill(s *apiStatus) {
	e.Reason, e.Message, e.named = oneLine(s.Reason, 50), oneLine(s.Message, 300), s.Details.Name
	if e.retryAfter == 0 {
		e.retryAfter = seconds(s.Details.RetryAfterSeconds)
	}
}

// broken is an exchange that did not come to its end.
func (c *Client) broken(ctx context.Context, k call, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return fmt.Errorf("%s: %s: %w", c.Server.Host, k.action, err)
}

// stranger is a success that makes no sense.
func (c *Client) stranger(k call, code int, err error) error {
	return fmt.Errorf("%s: %s: the answer makes no sense: %s: %s", c.Server.Host, k.action, oneLine(err.Error(), 200), cure(code, ""))
}

func seconds(n int) time.Duration {
	return time.Duration(min(max(n, 0), int(longestRest/time.Second))) * time.Second
}

// backoff grows from a quarter of a second to half a minute.
type backoff struct{ n int }

func (b *backoff) next() time.Duration {
	d := min(250*time.Millisecond<<min(b.n, 16), 30*time.Second)
	b.n++
	return spread(d, 0.2)
}

func (b *backoff) reset() { b.n = 0 }

// spread is d, more or less by up to a part of it: many that failed together shall not come
// back together.
func spread(d time.Duration, part float64) time.Duration {
	return time.Duration(float64(d) * (1 + part*(2*rand.Float64()-1)))
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
