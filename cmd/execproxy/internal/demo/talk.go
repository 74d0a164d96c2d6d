package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/demo/apiserver"
)

// Paths of the embedded API server.
const (
	podsPath   = "/api/v1/namespaces/default/pods"
	whoamiPath = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
)

// seeded is the pod that is there from the start.
const seeded = "web"

// caller speaks to one server as a Kubernetes client does: JSON over whatever the RoundTripper is.
type caller struct {
	server string
	rt     http.RoundTripper
}

func (c caller) do(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encoding the body: %w", err)
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, r)
	if err != nil {
		return nil, fmt.Errorf("making the request: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.rt.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return resp, nil
}

// call expects want and decodes the answer into v.
func (c caller) call(ctx context.Context, method, path string, body any, want int, v any) error {
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != want {
		return fmt.Errorf("%s %s: %s, want %d", method, path, told(resp), want)
	}
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		return fmt.Errorf("%s %s: decoding the answer: %w", method, path, err)
	}
	return nil
}

// refused expects a refusal, and returns it in words.
func (c caller) refused(ctx context.Context, path string) (string, error) {
	resp, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return "", err
	}
	return refusal(resp)
}

func refusal(resp *http.Response) (string, error) {
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
		return "", fmt.Errorf("not refused: %s", told(resp))
	}
	var s apiserver.Status
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return "", fmt.Errorf("refused with %s, but not by a Status: %w", resp.Status, err)
	}
	if s.Kind != "Status" || s.Code != resp.StatusCode {
		return "", fmt.Errorf("refused with %s, but by kind %q, code %d", resp.Status, s.Kind, s.Code)
	}
	return fmt.Sprintf("refused with %s (%s)", resp.Status, brief(s.Message)), nil
}

// brief is a message's beginning, enough to tell why.
func brief(message string) string {
	const most = 72
	if len(message) <= most {
		return message
	}
	cut := message[:most]
	if i := strings.LastIndexByte(cut, ' '); i > 0 {
		cut = cut[:i]
	}
	return strings.ToValidUTF8(strings.TrimRight(cut, " :;,"), "") + "…"
}

// told is an answer's status and, if it is a Status, its message.
func told(resp *http.Response) string {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var s apiserver.Status
	if json.Unmarshal(b, &s) == nil && s.Message != "" {
		return resp.Status + ": " + s.Message
	}
	return resp.Status
}

// who is a user as the API server must see it.
type who struct {
	user   string
	groups []string
	by     string // authenticator
}

func (c caller) whoami(ctx context.Context, want who) (string, error) {
	var rv apiserver.Review
	if err := c.call(ctx, http.MethodPost, whoamiPath, map[string]string{
		"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview",
	}, http.StatusCreated, &rv); err != nil {
		return "", err
	}
	u := rv.Status.UserInfo
	groups := append(slices.Clone(want.groups), "system:authenticated")
	by := strings.Join(u.Extra["demo.execproxy.io/authenticator"], ",")
	if u.Username != want.user || !slices.Equal(u.Groups, groups) || by != want.by {
		return "", fmt.Errorf("the API server sees user %q, groups %q, by %q; want %q, %q, by %q",
			u.Username, u.Groups, by, want.user, groups, want.by)
	}
	return fmt.Sprintf("%s, groups %s; authenticated by %s over %s", u.Username, strings.Join(u.Groups, ", "), by,
		strings.Join(u.Extra["demo.execproxy.io/protocol"], ",")), nil
}

func (c caller) get(ctx context.Context) (string, error) {
	var p apiserver.Pod
	if err := c.call(ctx, http.MethodGet, podsPath+"/"+seeded, nil, http.StatusOK, &p); err != nil {
		return "", err
	}
	if p.Metadata.Name != seeded || p.Status.Phase != "Running" {
		return "", fmt.Errorf("got pod %q, phase %q; want %q, Running", p.Metadata.Name, p.Status.Phase, seeded)
	}
	return fmt.Sprintf("pod %s is %s", p.Metadata.Name, p.Status.Phase), nil
}

func (c caller) list(ctx context.Context) (string, error) {
	var l apiserver.PodList
	if err := c.call(ctx, http.MethodGet, podsPath+"?limit=500", nil, http.StatusOK, &l); err != nil {
		return "", err
	}
	var names []string
	for _, p := range l.Items {
		names = append(names, p.Metadata.Name)
	}
	if !slices.Contains(names, seeded) {
		return "", fmt.Errorf("pods %q, want %q among them", names, seeded)
	}
	return fmt.Sprintf("%d pod(s): %s", len(names), strings.Join(names, ", ")), nil
}

// watch opens a watch that lives as long as life. Its first event must come while the server has nothing more to say,
// so nobody can have waited for a buffer to fill.
func (c caller) watch(ctx, life context.Context) (*watch, error) {
	w := &watch{}
	life, w.cancel = context.WithCancel(life)
	defer context.AfterFunc(ctx, w.cancel)()
	resp, err := c.do(life, http.MethodGet, podsPath+"?watch=true", nil)
	if err != nil {
		w.cancel()
		return nil, err
	}
	w.body, w.dec = resp.Body, json.NewDecoder(resp.Body)
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s?watch=true: %s", podsPath, told(resp))
	} else {
		err = w.next(ctx, "ADDED", seeded, "Running")
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// watch is an open watch.
type watch struct {
	cancel context.CancelFunc
	body   io.Closer
	dec    *json.Decoder
}

// next waits for the next event of the pod, and compares it.
func (w *watch) next(ctx context.Context, kind, pod, phase string) error {
	defer context.AfterFunc(ctx, w.cancel)()
	for {
		var e apiserver.Event
		if err := w.dec.Decode(&e); err != nil {
			return fmt.Errorf("waiting for %s of pod %q: %w", kind, pod, err)
		}
		switch {
		case e.Object.Metadata.Name != pod: // another's
		case e.Type != kind || e.Object.Status.Phase != phase:
			return fmt.Errorf("the watch says %s, %s of pod %q; want %s, %s", e.Type, e.Object.Status.Phase, pod, kind, phase)
		default:
			return nil
		}
	}
}

func (w *watch) close() {
	w.cancel()
	_ = w.body.Close()
}

// create posts a pod and follows it on the watch until it runs.
func (c caller) create(ctx context.Context, w *watch, name string) (string, error) {
	var made apiserver.Pod
	err := c.call(ctx, http.MethodPost, podsPath, apiserver.Pod{
		APIVersion: "v1", Kind: "Pod", Metadata: apiserver.Meta{Name: name},
		Spec: json.RawMessage(`{"containers":[{"name":"main","image":"busybox"}]}`),
	}, http.StatusCreated, &made)
	if err != nil {
		return "", err
	}
	if made.Metadata.UID == "" {
		return "", fmt.Errorf("pod %q came back without a uid", name)
	}
	if err := w.next(ctx, "ADDED", name, "Pending"); err != nil {
		return "", err
	}
	if err := w.next(ctx, "MODIFIED", name, "Running"); err != nil {
		return "", err
	}
	return fmt.Sprintf("pod %s created; the open watch saw it ADDED (Pending), then MODIFIED (Running)", name), nil
}
