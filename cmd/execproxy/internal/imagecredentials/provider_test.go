package imagecredentials

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/imagecredentials/ecr"
)

const (
	ecrImage = "123456789012.dkr.ecr.us-west-2.amazonaws.com/app"
	role     = "arn:aws:iam::123456789012:role/r"
)

// tokens is ECR, counted.
type tokens struct {
	calls atomic.Int64
	err   atomic.Pointer[error]
	life  time.Duration
	wait  chan struct{}
}

func (s *tokens) Token(ctx context.Context, h ecr.Host, who ecr.Identity) (ecr.Token, error) {
	n := s.calls.Add(1)
	if s.wait != nil {
		select {
		case <-s.wait:
		case <-ctx.Done():
			return ecr.Token{}, ctx.Err()
		}
	}
	if err := s.err.Load(); err != nil {
		return ecr.Token{}, *err
	}
	t := ecr.Token{Username: "AWS", Password: fmt.Sprintf("%d %s %s", n, h.Region, who.RoleARN)}
	if s.life > 0 {
		t.Expires = time.Now().Add(s.life)
	}
	return t, nil
}

func (s *tokens) fail(err error) { s.err.Store(&err) }

func provider(t *testing.T, o Options) *Provider {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestOneCall: whoever asks at the same time waits for the same call, and the one
// that asked first may go.
func TestOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tokens{life: 12 * time.Hour, wait: make(chan struct{})}
		p := provider(t, Options{ECR: s})
		first, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := p.Answer(first, &Request{Image: ecrImage}); !errors.Is(err, context.Canceled) {
				t.Errorf("the first one got %v", err)
			}
		})
		synctest.Wait()
		for i := range 200 {
			all.Go(func() {
				a, err := p.Answer(t.Context(), &Request{Image: fmt.Sprint(ecrImage, i)})
				if err != nil || a.Auth["123456789012.dkr.ecr.us-west-2.amazonaws.com"].Password != "1 us-west-2 " || a.CacheDuration != maxFresh {
					t.Errorf("got %+v, %v", a, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(s.wait)
		all.Wait()
		if n := s.calls.Load(); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
	})
}

// TestFreshness: an answer is never told to be good for longer than it is, a token
// in the cache is renewed in time, and one that is still valid bridges an outage but
// no refusal.
func TestFreshness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &tokens{life: 12 * time.Hour}
		p := provider(t, Options{ECR: s})
		ask := func() (*Answer, error) { return p.Answer(t.Context(), &Request{Image: ecrImage}) }
		want := func(calls int64, keep time.Duration) {
			t.Helper()
			a, err := ask()
			if err != nil || s.calls.Load() != calls || a.CacheDuration != keep || a.CacheKeyType != CacheRegistry {
				t.Fatalf("got %+v, %v after %d calls; want %v after %d", a, err, s.calls.Load(), keep, calls)
			}
		}
		want(1, 15*time.Minute)
		time.Sleep(10 * time.Minute)
		want(1, 5*time.Minute)
		time.Sleep(6 * time.Minute)
		want(2, 15*time.Minute)
		s.fail(errors.New("no reason known"))
		time.Sleep(16 * time.Minute)
		if a, err := ask(); err == nil {
			t.Errorf("an error that is not ECR's gave %+v", a)
		}
		s.err.Store(nil)
		want(4, 15*time.Minute)
		s.fail(&ecr.Error{What: "asking", Err: errors.New("timeout")})
		time.Sleep(16 * time.Minute)
		want(5, retryStale)
		want(5, retryStale)
		time.Sleep(2 * time.Minute)
		want(6, retryStale)
		s.fail(&ecr.Error{What: "asking", Err: errors.New("AccessDenied"), Refused: true})
		time.Sleep(2 * time.Minute)
		if a, err := ask(); err == nil {
			t.Errorf("a refusal gave %+v", a)
		}
		s.fail(&ecr.Error{What: "asking", Err: errors.New("timeout")})
		if a, err := ask(); err == nil {
			t.Errorf("after a refusal an outage gave %+v", a)
		}
		s.err.Store(nil)
		s.life = 10 * time.Minute
		want(9, 5*time.Minute)
		time.Sleep(9 * time.Minute)
		s.life = 0 // told no expiry
		want(10, 0)
		want(11, 0)
	})
}

// TestRoles: one service account's token is no answer for another's, and the node's
// identity is nobody's by default.
func TestRoles(t *testing.T) {
	s := &tokens{life: time.Hour}
	p := provider(t, Options{ECR: s})
	ask := func(token, role string) string {
		t.Helper()
		r := &Request{Image: ecrImage, ServiceAccountToken: token, ServiceAccountAnnotations: map[string]string{RoleAnnotation: role}}
		if role == "-" {
			r.ServiceAccountAnnotations = nil
		}
		a, err := p.Answer(t.Context(), r)
		if err != nil {
			return "error: " + err.Error()
		}
		return a.Auth["123456789012.dkr.ecr.us-west-2.amazonaws.com"].Password
	}
	for _, c := range []struct{ token, role, want string }{
		{"", "-", "1 us-west-2 "},
		{"hunter-2718", role, "2 us-west-2 " + role},
		{"hunter-2718", role, "2 us-west-2 " + role},
		{"hunter-2719", role, "3 us-west-2 " + role},
		{"hunter-2719", "-", "error: the pod's service account names no role"},
		{"hunter-2719", "", "error: the service account's annotation " + RoleAnnotation},
		{"hunter-2719", "admin", "error: the service account's annotation " + RoleAnnotation},
	} {
		got := ask(c.token, c.role)
		if !strings.HasPrefix(got, c.want) || strings.Contains(got, "hunter") || c.want[0] != 'e' && got != c.want {
			t.Errorf("%q %q: got %s, want %s", c.token, c.role, got, c.want)
		}
	}
	p.o.Fallback = FallbackNode
	if got := ask("hunter-2719", "-"); got != "1 us-west-2 " {
		t.Errorf("by policy: got %s", got)
	}
	p.o.RoleARN = role
	if got := ask("hunter-2720", "-"); got != "4 us-west-2 "+role {
		t.Errorf("with a default role: got %s", got)
	}
	if _, err := New(Options{Fallback: "maybe"}); err == nil {
		t.Error("an unknown policy was taken")
	}
	if _, err := New(Options{RoleARN: "admin"}); err == nil {
		t.Error("a default role that is none was taken")
	}
}

// TestNobodyElse: no other registry is reason to ask AWS.
func TestNobodyElse(t *testing.T) {
	s := &tokens{}
	p := provider(t, Options{ECR: s})
	for _, image := range []string{
		"nginx", "docker.io/library/nginx", "123456789012.dkr.ecr.us-west-2.amazonaws.com.evil.example/app", "evil.example/" + ecrImage,
		"123456789012.dkr.ecr.us-west-2.amazonaws.com:8443/app", "12345678901.dkr.ecr.us-west-2.amazonaws.com/app", "public.ecr.aws.evil.example/a",
	} {
		a, err := p.Answer(t.Context(), &Request{Image: image})
		if err != nil || a.Auth != nil || a.CacheKeyType != CacheImage || a.CacheDuration != keepNothing {
			t.Errorf("%s: %+v, %v", image, a, err)
		}
	}
	if n := s.calls.Load(); n != 0 {
		t.Errorf("%d calls", n)
	}
}

func TestConfiguration(t *testing.T) {
	const head = "apiVersion: execproxy.io/v1alpha1\nkind: ImageCredentialConfiguration\n"
	for name, c := range map[string]struct{ in, want string }{
		"empty":         {head, ""},
		"all":           {head + "dockerConfig: /c\nregistries:\n- {match: a.example, username: u, passwordFile: /p, cacheDuration: 0s}\n- {match: b.example, helper: h}\n- {match: c.example, username: u, exec: {command: /c, args: [a]}}\n", ""},
		"no kind":       {"registries: []", "is not of apiVersion execproxy.io/v1alpha1, kind ImageCredentialConfiguration"},
		"unknown field": {head + "registry: []", `unknown field "registry"; known are apiVersion, kind, dockerConfig`},
		"twice":         {head + "registries: []\nregistries: []", "registries"},
		"two sources":   {head + "registries: [{match: a.example, username: u, passwordFile: /p, helper: h}]", "registries[0]: needs exactly one of"},
		"no source":     {head + "registries: [{match: a.example, username: u}]", "registries[0]: needs exactly one of"},
		"no user":       {head + "registries: [{match: a.example, passwordFile: /p}]", "needs a username"},
		"user, helper":  {head + "registries: [{match: a.example, username: u, helper: h}]", "username does not go with helper"},
		"relative":      {head + "registries: [{match: a.example, username: u, passwordFile: p}]", "passwordFile is a relative path"},
		"relative exec": {head + "registries: [{match: a.example, username: u, exec: {command: p}}]", "exec.command is not an absolute path"},
		"relative json": {head + "dockerConfig: c", "dockerConfig is a relative path"},
		"helper path":   {head + "registries: [{match: a.example, helper: ../h}]", `"../h" is no helper`},
		"duration":      {head + "registries: [{match: a.example, helper: h, cacheDuration: 1d}]", `cacheDuration "1d"`},
		"long":          {head + "registries: [{match: a.example, helper: h, cacheDuration: 13h}]", `cacheDuration "13h"`},
		"pattern":       {head + `registries: [{match: "*", helper: h}]`, "would match every registry"},
		"same":          {head + "registries: [{match: a.example/, helper: h}, {match: A.example, helper: h}]", "registries[1]: match"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseConfiguration([]byte(c.in))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// TestRules: which one counts, under which key, and that a changed file counts at once.
func TestRules(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	quoted := func(path string) string { return fmt.Sprintf("%q", path) }
	config := file("c.yaml", "apiVersion: execproxy.io/v1alpha1\nkind: ImageCredentialConfiguration\nregistries:\n"+
		"- {match: '*.example:5000', username: any, passwordFile: "+quoted(file("any", "p1\n"))+", cacheDuration: 1h}\n"+
		"- {match: 'r.example:5000', username: r, passwordFile: "+quoted(file("r", "p2"))+"}\n"+
		"- {match: 'r.example:5000/team', username: team, passwordFile: "+quoted(file("team", "p3\r\n"))+"}\n"+
		"- {match: docker.io, username: hub, passwordFile: "+quoted(file("hub", "p4"))+"}\n"+
		"- {match: '*.dkr.ecr.*.amazonaws.com', username: mine, passwordFile: "+quoted(file("mine", "p5"))+"}\n")
	s := &tokens{}
	p := provider(t, Options{ECR: s, Configuration: config})
	ask := func(image string) string {
		a, err := p.Answer(t.Context(), &Request{Image: image})
		if err != nil {
			return err.Error()
		}
		out := string(a.CacheKeyType) + " " + a.CacheDuration.Round(time.Minute).String()
		for key, c := range a.Auth {
			out += fmt.Sprint(" ", key, " ", c.Username, " ", c.Password)
		}
		return out
	}
	for image, want := range map[string]string{
		"x.example:5000/a":          "Registry 1h0m0s x.example:5000 any p1",
		"r.example:5000/a":          "Image 5m0s r.example:5000 r p2",
		"r.example:5000/team/a":     "Image 5m0s r.example:5000/team/ team p3",
		"r.example:5000/team":       "Image 5m0s r.example:5000/team team p3",
		"r.example:5000/teammate/a": "Image 5m0s r.example:5000 r p2",
		"nginx":                     "Registry 5m0s index.docker.io hub p4",
		"docker.io/library/nginx":   "Registry 5m0s docker.io hub p4",
		ecrImage:                    "Registry 5m0s 123456789012.dkr.ecr.us-west-2.amazonaws.com mine p5",
		"q.example/a":               "Image 1m0s",
	} {
		if got := ask(image); got != want {
			t.Errorf("%s: got %s, want %s", image, got, want)
		}
	}
	if s.calls.Load() != 0 {
		t.Error("ECR was asked although a rule is for it")
	}
	file("any", "p6")
	if got := ask("x.example:5000/a"); !strings.HasSuffix(got, "p6") {
		t.Errorf("after the password changed: %s", got)
	}
	file("any", "")
	if got := ask("x.example:5000/a"); !strings.HasSuffix(got, ": empty") {
		t.Errorf("an empty password: %s", got)
	}
	file("any", "two\nlines")
	if got := ask("x.example:5000/a"); !strings.HasSuffix(got, ": more than one line") {
		t.Errorf("two lines: %s", got)
	}
	file("c.yaml", "apiVersion: x")
	if got := ask("x.example:5000/a"); !strings.Contains(got, "is not of apiVersion") {
		t.Errorf("a broken configuration: %s", got)
	}
}

// TestCacheIsBounded: tokens of service accounts are each their own.
func TestCacheIsBounded(t *testing.T) {
	now := time.Now()
	c := &cache{clock: func() time.Time { return now }}
	for i := range maxGrants + 100 {
		c.keep(fmt.Sprint(i), grant{fresh: now.Add(time.Hour)})
	}
	if n := len(c.kept); n != maxGrants {
		t.Errorf("%d are kept, want %d", n, maxGrants)
	}
	if _, ok := c.at(fmt.Sprint(maxGrants + 99)); !ok {
		t.Error("the last one is not kept")
	}
}
