package sigv4

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/execproxy/execproxy/signer"
)

var _ signer.FieldSigner = (*Signer)(nil)

// TestSignFieldsAgrees: with every option SignFields makes what SignRequest makes.
func TestSignFieldsAgrees(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"plain":          func(*Options) {},
		"no token":       func(o *Options) { o.Credentials = credentials.NewStaticCredentialsProvider(testID, testSecret, "") },
		"target":         func(o *Options) { o.BindTarget = true },
		"no hash":        func(o *Options) { o.OmitContentSHA256 = true },
		"unsigned token": func(o *Options) { o.UnsignedSessionToken = true },
		"exact":          func(o *Options) { o.Path = PathExact },
		"normalized":     func(o *Options) { o.Path = PathNormalized },
		"single":         func(o *Options) { o.SingleEncode = true },
		"s3":             func(o *Options) { o.Service = "s3" },
	} {
		for _, r := range []*signer.Request{testRequest(), getRequest()} {
			for _, hash := range []string{r.ContentSHA256, signer.UnsignedPayload} {
				for _, path := range []string{r.Path, "/a//../b/./%7e%c3%a9/"} {
					r.ContentSHA256, r.Path = hash, path
					s := newSigner(t, change)
					want, wantErr := s.SignRequest(t.Context(), r)
					got, err := signFields(t, s, r)
					if !reflect.DeepEqual(got, want) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
						t.Errorf("%s %s:\n got %v, %v\nwant %v, %v", name, path, got, err, want, wantErr)
					}
				}
			}
		}
	}
}

// TestSignFieldsOrder: fields come as clients send them; what counts is their order within a name.
func TestSignFieldsOrder(t *testing.T) {
	sign := func(sent ...signer.Field) string {
		t.Helper()
		var out signer.Fields
		if ok, err := ready(t, newSigner(t)).SignFields(getRequest(), sent, &out); !ok || err != nil {
			t.Fatal(ok, err)
		}
		return out.List()[0].Value
	}
	many := []signer.Field{{Name: "z", Value: "1"}, {Name: "a", Value: "1"}, {Name: "z", Value: ""}, {Name: "a", Value: " 2  3\t"}}
	r := getRequest()
	r.Header = http.Header{"Z": {"1", ""}, "A": {"1", " 2  3\t"}}
	want := signed(t, newSigner(t), r).Header.Get(fieldAuthorization)
	if got := sign(many...); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := sign(many[1], many[0], many[3], many[2]); got != want {
		t.Errorf("another order of names:\ngot  %s\nwant %s", got, want)
	}
	if got := sign(many[2], many[1], many[0], many[3]); got == want {
		t.Error("another order of values has the same signature")
	}
	// More than fit in a first look.
	r.Header = http.Header{}
	many = nil
	for i := range 300 {
		f := signer.Field{Name: fmt.Sprintf("x-%d", i*7919%97), Value: fmt.Sprint(i)}
		many = append(many, f)
		r.Header.Add(f.Name, f.Value)
	}
	if got, want := sign(many...), signed(t, newSigner(t), r).Header.Get(fieldAuthorization); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSignFieldsRefuses(t *testing.T) {
	noToken := ready(t, newSigner(t, func(o *Options) { o.Credentials = credentials.NewStaticCredentialsProvider(testID, testSecret, "") }))
	withToken := ready(t, newSigner(t))
	for name, tc := range map[string]struct {
		s     *Signer
		sent  []signer.Field
		field string // "": signed
	}{
		"pseudo-field":                 {withToken, []signer.Field{{Name: ":path", Value: "/"}}, "header"},
		"no name":                      {withToken, []signer.Field{{Value: "x"}}, "header"},
		"upper case":                   {withToken, []signer.Field{{Name: "X-Upper", Value: "x"}}, "header X-Upper"},
		"upper-case user":              {withToken, []signer.Field{{Name: "Impersonate-User", Value: "x"}}, "header Impersonate-User"},
		"Kelvin":                       {withToken, []signer.Field{{Name: "x-\u212a", Value: "x"}}, "header"},
		"users apart":                  {withToken, []signer.Field{{Name: "impersonate-user", Value: "a"}, {Name: "a", Value: "b"}, {Name: "impersonate-user", Value: "b"}}, "header Impersonate-User"},
		"two lengths of 0":             {withToken, []signer.Field{{Name: "content-length", Value: "0"}, {Name: "content-length", Value: "0"}}, "header Content-Length"},
		"length":                       {withToken, []signer.Field{{Name: "content-length", Value: "0"}}, ""},
		"their token":                  {noToken, []signer.Field{{Name: "x-amz-security-token", Value: "x"}}, fieldToken},
		"replaced":                     {withToken, []signer.Field{{Name: "x-amz-security-token", Value: "x"}, {Name: "authorization", Value: "x"}}, ""},
		"space, then a no-break space": {withToken, []signer.Field{{Name: "x-a", Value: " \u00a0a"}}, "header X-A"},
	} {
		var out signer.Fields
		out.Add("before", "kept")
		ok, err := tc.s.SignFields(getRequest(), tc.sent, &out)
		var refused *signer.RequestError
		switch {
		case !ok:
			t.Errorf("%s: not signed and not refused", name)
		case tc.field == "" && err != nil, tc.field != "" && (!errors.As(err, &refused) || refused.Field != tc.field):
			t.Errorf("%s: %v, want an error about %q", name, err, tc.field)
		case tc.field != "" && len(out.List()) != 1:
			t.Errorf("%s: refused, and left %v", name, &out)
		}
	}
}

// TestSignFieldsNeverWaits: where SignRequest would ask the source, SignFields does nothing.
func TestSignFieldsNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource(hourly)
		c := NewCredentials(s, CacheOptions{})
		sign := newSigner(t, func(o *Options) { o.Credentials, o.Clock = c, nil })
		var out signer.Fields
		check := func(when string, want bool) {
			t.Helper()
			out.Reset()
			before := s.calls.Load()
			ok, err := sign.SignFields(getRequest(), getFields, &out)
			if ok != want || err != nil || len(out.List()) > 0 != want {
				t.Errorf("%s: %t, %v, %v", when, ok, err, &out)
			}
			if s.calls.Load() != before {
				t.Errorf("%s: it asked the source", when)
			}
		}
		request := func() {
			t.Helper()
			if _, err := sign.SignRequest(t.Context(), getRequest()); err != nil {
				t.Fatal(err)
			}
		}
		check("nothing at hand", false)
		request()
		check("at hand", true)
		time.Sleep(57 * time.Minute)
		check("to be refreshed, and nobody runs the cache", false)
		request()
		check("refreshed", true)
		time.Sleep(restless)
		c.Invalidate()
		check("invalidated", false)
		request()
		check("new ones", true)
		stop := run(t, c)
		time.Sleep(57 * time.Minute)
		check("Run refreshes", true)
		s.do.Store(answer(func(context.Context, int) (aws.Credentials, error) { return aws.Credentials{}, errors.New("down") }))
		time.Sleep(30 * time.Minute)
		check("the source is down, the old ones last", true)
		time.Sleep(2 * time.Hour)
		check("expired", false)
		stop()
	})
	// What net/http would not send is not sent either.
	for _, odd := range []aws.Credentials{
		{AccessKeyID: testID, SecretAccessKey: testSecret, SessionToken: "a\r\nx-remote-user: root"},
		{AccessKeyID: testID + "\n", SecretAccessKey: testSecret},
	} {
		s := ready(t, newSigner(t, func(o *Options) { o.Credentials = credentials.StaticCredentialsProvider{Value: odd} }))
		var out signer.Fields
		if ok, err := s.SignFields(getRequest(), nil, &out); ok || err != nil || len(out.List()) != 0 {
			t.Errorf("%q: %t, %v, %v", odd.AccessKeyID, ok, err, &out)
		}
	}
	// Nobody knows what another provider does.
	var out signer.Fields
	if ok, err := newSigner(t).SignFields(getRequest(), nil, &out); ok || err != nil {
		t.Errorf("a provider that may wait: %t, %v", ok, err)
	}
}

// TestSignFieldsKeepsNothing: the caller's memory is used again, and so is ours.
func TestSignFieldsKeepsNothing(t *testing.T) {
	s := ready(t, newSigner(t, func(o *Options) { o.BindTarget = true }))
	mem := []byte(hashOf("body") + "/api/v1/pods" + "a=%2a b" + "x-field" + "va  lue")
	r := &signer.Request{Method: "GET", Authority: "host", ContentSHA256: text(mem[:64]), Path: text(mem[64:76]), RawQuery: text(mem[76:81])}
	sent := []signer.Field{{Name: text(mem[83:90]), Value: text(mem[90:])}}
	var one, two signer.Fields
	if ok, err := s.SignFields(r, sent, &one); !ok || err != nil {
		t.Fatal(ok, err)
	}
	want := inHeader(&one)
	for i, f := range one.List() {
		if lasting := f.Name == lowToken; one.Transient(i) == lasting {
			t.Errorf("%s: transient %t", f.Name, one.Transient(i))
		}
	}
	clear(mem)
	if ok, err := s.SignFields(getRequest(), getFields, &two); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if got := inHeader(&one); !reflect.DeepEqual(got, want) {
		t.Errorf("the fields changed with the request's memory:\n got %q\nwant %q", got, want)
	}
	if c, _ := s.kept.kept.Look(); !sameAddress(two.List()[2].Value, c.Value.SessionToken) {
		t.Error("the token is not the credential's own string")
	}
	for i, f := range two.List() { // the empty body's hash is always the same
		if f.Name == lowSHA256 && two.Transient(i) {
			t.Error("the empty body's hash is taken for a value of one request")
		}
	}
}

// TestSignFieldsAllocates nothing, once a second has begun.
func TestSignFieldsAllocates(t *testing.T) {
	if raceDetector {
		t.Skip("under the race detector a sync.Pool drops what it is given at random, to find races")
	}
	exec := testRequest()
	exec.RawQuery += "&b=%7e+%2f/&a="
	exec.Header["X-Spaces"] = []string{"  a   b ", "c"}
	long := flat(exec.Header)
	for i := range 40 {
		long = append(long, signer.Field{Name: fmt.Sprintf("x-%d", 99-i), Value: "value"})
	}
	for name, tc := range map[string]struct {
		r      *signer.Request
		sent   []signer.Field
		change func(*Options)
	}{
		"get":        {getRequest(), getFields, func(*Options) {}},
		"exec":       {exec, flat(exec.Header), func(o *Options) { o.BindTarget = true }},
		"many":       {exec, long, func(o *Options) { o.Service = "s3" }},
		"normalized": {exec, long, func(o *Options) { o.Path = PathNormalized }},
	} {
		s := ready(t, newSigner(t, tc.change))
		var out signer.Fields
		if n := testing.AllocsPerRun(200, func() {
			out.Reset()
			if ok, err := s.SignFields(tc.r, tc.sent, &out); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestRotation: while the credentials change, the secret under an id that stays, and the day,
// each signature is of one set of credentials and one day.
func TestRotation(t *testing.T) {
	midnight := time.Date(2026, 12, 31, 0, 0, 0, 0, time.UTC)
	var now, number atomic.Int64
	now.Store(midnight.Add(-5 * time.Second).UnixNano())
	clock := func() time.Time { return time.Unix(0, now.Load()).In(time.FixedZone("far", 13*3600)) }
	source := newSource(func(context.Context, int) (aws.Credentials, error) {
		n := number.Load()
		return aws.Credentials{AccessKeyID: testID, SecretAccessKey: fmt.Sprintf("%s-%d", testSecret, n), SessionToken: fmt.Sprint("token-", n)}, nil
	})
	c := NewCredentials(source, CacheOptions{Clock: clock})
	if _, err := c.Retrieve(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := newSigner(t, func(o *Options) { o.Credentials, o.Clock = c, clock })
	var turns sync.WaitGroup
	var fast atomic.Int64
	for i := range 4 {
		turns.Go(func() {
			var out signer.Fields
			for j := range 300 {
				if i == 0 { // one turns the wheels
					now.Add(int64(40 * time.Second / 1000))
					if j%10 == 0 {
						number.Add(1)
						c.kept.Invalidate()
					}
				}
				r := getRequest()
				r.RawQuery = fmt.Sprintf("i=%d&j=%d", i, j)
				out.Reset()
				ok, err := s.SignFields(r, nil, &out)
				h := inHeader(&out)
				if ok {
					fast.Add(1)
				} else {
					h, err = s.SignRequest(t.Context(), r)
				}
				if err != nil {
					t.Error(err)
					return
				}
				v := testVerifier()
				v.Clock, v.Window = clock, time.Minute
				v.Lookup = func(_, date, region, service string) ([]byte, Identity, error) {
					secret := testSecret + strings.TrimPrefix(h.Get(fieldToken), "token")
					return DeriveKey(secret, date, region, service), Identity{}, nil
				}
				if _, err := v.Verify(with(r, h)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	turns.Wait()
	if day := clock().UTC().Format(dateFormat); day != "20261231" {
		t.Errorf("the day did not change: %s", day)
	}
	if source.calls.Load() < 10 || fast.Load() < 100 {
		t.Errorf("%d sets of credentials, %d of 1200 signed at once", source.calls.Load(), fast.Load())
	}
	// What is kept is what was used last.
	var out signer.Fields
	if _, err := s.SignRequest(t.Context(), getRequest()); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.SignFields(getRequest(), nil, &out); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if k, m := s.key.Load(), s.moment.Load(); k.day != "20261231" || m.day != k.day {
		t.Errorf("kept: %v, and the day %s", k, m.day)
	}
}

// TestKeysPrinted: what holds key material does not show it, whatever the verb.
func TestKeysPrinted(t *testing.T) {
	s := ready(t, newSigner(t))
	var out signer.Fields
	if ok, err := s.SignFields(getRequest(), getFields, &out); !ok || err != nil {
		t.Fatal(ok, err)
	}
	k := s.key.Load()
	f := &form{key: k, mac: k.hmac(), text: []byte("canary")}
	for _, v := range []any{s, s.kept, k, f, &out} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x", "%q"} {
			got := fmt.Sprintf(verb, v)
			for _, secret := range []string{"canary", hexOf([]byte("canary")), hexOf(k.key), fmt.Sprint(k.key[:4])} {
				if strings.Contains(got, strings.Trim(secret, "[]")) {
					t.Errorf("%T with %s prints %s", v, verb, got)
				}
			}
		}
	}
}
