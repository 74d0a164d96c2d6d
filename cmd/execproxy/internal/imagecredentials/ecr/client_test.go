package ecr

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
)

// clean has the SDK find nothing of whoever runs the tests.
func clean(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT", "AWS_CA_BUNDLE", "HTTPS_PROXY", "HTTP_PROXY"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_CONFIG_FILE", t.TempDir()+"/none")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", t.TempDir()+"/none")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_MAX_ATTEMPTS", "1")
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret-2718")
}

// TestAnswers: what ECR may answer, by way of AWS_ENDPOINT_URL_ECR, which counts for
// FIPS and dual-stack registries as well.
func TestAnswers(t *testing.T) {
	good := func(token string, expires time.Time) string {
		return fmt.Sprintf(`{"authorizationData":[{"authorizationToken":%q,"expiresAt":%d}]}`, token, expires.Unix())
	}
	later := time.Now().Add(12 * time.Hour)
	for name, c := range map[string]struct {
		status  int
		body    string
		want    string // in the error
		refused bool
	}{
		"token":         {200, good("QVdTOmh1bnRlci0yNzE4", later), "", false},
		"none":          {200, `{"authorizationData":[]}`, "asking ECR in us-west-2 for a token: the answer has none", false},
		"no base64":     {200, good("hunter-2718!", later), "ECR's token is not base64", false},
		"no pair":       {200, good("aHVudGVyLTI3MTg=", later), "ECR's token is not user:password", false},
		"expired":       {200, good("QVdTOmh1bnRlci0yNzE4", time.Now().Add(-time.Second)), "has expired already; set this node's clock", false},
		"access denied": {400, `{"__type":"AccessDeniedException","message":"not you"}`, "asking ECR in us-west-2 for a token: AccessDeniedException: not you", true},
		"throttled":     {400, `{"__type":"ThrottlingException","message":"slowly"}`, "ThrottlingException: slowly", false},
		"too many":      {429, `{"__type":"TooManyRequests","message":"slowly"}`, "TooManyRequests: slowly", false},
		"fails":         {500, `{"__type":"ServerException","message":"oh"}`, "ServerException: oh", false},
	} {
		t.Run(name, func(t *testing.T) {
			clean(t)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.Contains(r.Header.Get("Authorization"), "/us-west-2/ecr/aws4_request") {
					t.Errorf("signed as %q", r.Header.Get("Authorization"))
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}))
			defer s.Close()
			defer s.CloseClientConnections()
			t.Setenv("AWS_ENDPOINT_URL_ECR", s.URL)
			h, _ := ParseHost("123456789012.dkr-ecr-fips.us-west-2.on.aws")
			got, err := NewClient(slog.New(slog.DiscardHandler)).Token(t.Context(), h, Identity{})
			if c.want == "" {
				if err != nil || got.Username != "AWS" || got.Password != "hunter-2718" || got.Expires.Unix() != later.Unix() {
					t.Errorf("got %+v, %v", got, err)
				}
				if s := fmt.Sprintf("%v %+v %#v", got, got, got); strings.Contains(s, "hunter") {
					t.Errorf("printed %s", s)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter") || strings.Contains(err.Error(), "aHVu") {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			var e *Error
			if errors.As(err, &e) && e.Refused != c.refused {
				t.Errorf("refused is %t: %v", e.Refused, err)
			}
		})
	}
}

// TestCredentialsAreLoadedOnce, for all registries.
func TestCredentialsAreLoadedOnce(t *testing.T) {
	clean(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, `{"authorizationData":[{"authorizationToken":"QVdTOmE=","expiresAt":%d}]}`, time.Now().Add(time.Hour).Unix())
	}))
	defer s.Close()
	defer s.CloseClientConnections()
	t.Setenv("AWS_ENDPOINT_URL_ECR", s.URL)
	loads := 0
	c := NewClient(slog.New(slog.DiscardHandler), func(o *config.LoadOptions) error {
		if o.Region == "" { // only the chain has no region yet
			o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				loads++
				return aws.Credentials{AccessKeyID: "AKIDONCE", SecretAccessKey: "secret-2718"}, nil
			})
		}
		return nil
	})
	for _, region := range []string{"us-west-2", "eu-central-1", "us-west-2"} {
		h, _ := ParseHost("123456789012.dkr.ecr." + region + ".amazonaws.com")
		if _, err := c.Token(t.Context(), h, Identity{}); err != nil {
			t.Fatal(err)
		}
	}
	if loads != 1 || c.Name() != "aws credentials AKIDONCE" {
		t.Errorf("loaded %d times, as %s", loads, c.Name())
	}
}

// asked is an ECR that takes one access key, without a network.
type asked struct{ key atomic.Value }

func (a *asked) Do(r *http.Request) (*http.Response, error) {
	status, body := 200, fmt.Sprintf(`{"authorizationData":[{"authorizationToken":"QVdTOmE=","expiresAt":%d}]}`, time.Now().Add(time.Hour).Unix())
	if !strings.Contains(r.Header.Get("Authorization"), "Credential="+a.key.Load().(string)+"/") {
		status, body = 400, `{"__type":"UnrecognizedClientException","message":"who?"}`
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// TestRotatedKeys: a refusal has the node's credentials looked up again, which nothing
// else does where they do not expire.
func TestRotatedKeys(t *testing.T) {
	clean(t)
	synctest.Test(t, func(t *testing.T) {
		var cloud asked
		key := "AKIDOLD"
		cloud.key.Store(key)
		c := NewClient(slog.New(slog.DiscardHandler), config.WithHTTPClient(&cloud), func(o *config.LoadOptions) error {
			if o.Region == "" {
				o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
					return aws.Credentials{AccessKeyID: key, SecretAccessKey: "secret-2718"}, nil
				})
			}
			return nil
		})
		h, _ := ParseHost("123456789012.dkr.ecr.us-west-2.amazonaws.com")
		if _, err := c.Token(t.Context(), h, Identity{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		key = "AKIDNEW"
		cloud.key.Store(key)
		if _, err := c.Token(t.Context(), h, Identity{}); err == nil {
			t.Error("the old key was taken")
		}
		if _, err := c.Token(t.Context(), h, Identity{}); err != nil || c.Name() != "aws credentials AKIDNEW" {
			t.Errorf("as %s: %v", c.Name(), err)
		}
	})
}

// TestNameDoesNotWait for an identity that is being looked up: `status` asks for it.
func TestNameDoesNotWait(t *testing.T) {
	clean(t)
	looking, found := make(chan struct{}), make(chan struct{})
	c := NewClient(slog.New(slog.DiscardHandler), func(o *config.LoadOptions) error {
		if o.Region == "" {
			o.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				close(looking)
				<-found
				return aws.Credentials{}, errors.New("nobody")
			})
		}
		return nil
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		h, _ := ParseHost("123456789012.dkr.ecr.us-west-2.amazonaws.com")
		_, _ = c.Token(context.Background(), h, Identity{})
	}()
	<-looking
	name := make(chan string, 1)
	go func() { name <- c.Name() }()
	select {
	case got := <-name:
		if got != "" {
			t.Errorf("it is %q already", got)
		}
	case <-done:
		t.Error("it waited until the lookup was given up")
	}
	close(found)
	<-done
}

// TestNoIdentity: the cure is one that whoever configures kubelet has.
func TestNoIdentity(t *testing.T) {
	clean(t)
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	h, _ := ParseHost("123456789012.dkr.ecr.us-west-2.amazonaws.com")
	_, err := NewClient(slog.New(slog.DiscardHandler)).Token(t.Context(), h, Identity{})
	if err == nil || !strings.Contains(err.Error(), "in the env of kubelet's CredentialProviderConfig") || strings.Contains(err.Error(), "--") {
		t.Errorf("got %v", err)
	}
}
