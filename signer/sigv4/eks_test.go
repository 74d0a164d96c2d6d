package sigv4

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/execproxy/execproxy/signer"
)

// presignedOf is the request in a token.
func presignedOf(t *testing.T, token string) *url.URL {
	t.Helper()
	text, ok := strings.CutPrefix(token, "k8s-aws-v1.")
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if !ok || err != nil {
		t.Fatalf("%.20s…: %v", token, err)
	}
	u, err := url.Parse(string(raw))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestEKSToken: what STS would get verifies, for the cluster that it was signed for alone.
func TestEKSToken(t *testing.T) {
	o := chainOptions(t, "[default]\nregion = eu-central-1\n", staticFile)
	c, err := LoadCredentials(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	token, expires, err := c.EKSToken(t.Context(), "prod")
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(expires); left < 13*time.Minute || left > 14*time.Minute {
		t.Errorf("good for %v", left)
	}
	u := presignedOf(t, token)
	q := u.Query()
	if u.Scheme != "https" || u.Host != "sts.eu-central-1.amazonaws.com" || u.Path != "/" || q.Get("Action") != "GetCallerIdentity" ||
		q.Get("Version") != "2011-06-15" || q.Get("X-Amz-Expires") != "60" || q.Get("X-Amz-SignedHeaders") != "host;x-k8s-aws-id" || len(q) != 8 {
		t.Errorf("%s", u)
	}
	v := Verifier{Region: "eu-central-1", Service: "sts", Presigned: true, Lookup: func(id, date, region, service string) ([]byte, Identity, error) {
		return DeriveKey(testSecret, date, region, service), Identity{}, nil
	}}
	for cluster, good := range map[string]bool{"prod": true, "other": false} {
		_, err := v.Verify(&signer.Request{
			Method: "GET", Scheme: "https", Authority: u.Host, Path: u.Path, RawQuery: u.RawQuery,
			Header: http.Header{"X-K8s-Aws-Id": {cluster}, "Accept": {"application/json"}}, ContentSHA256: signer.EmptySHA256,
		})
		if (err == nil) != good {
			t.Errorf("cluster %s: %v", cluster, err)
		}
	}
}

// TestEKSTokenEndpoints: the region decides on the partition, and the environment on the rest.
func TestEKSTokenEndpoints(t *testing.T) {
	for _, tt := range []struct{ region, name, value, want string }{
		{"cn-north-1", "", "", "sts.cn-north-1.amazonaws.com.cn"},
		{"us-gov-west-1", "", "", "sts.us-gov-west-1.amazonaws.com"},
		{"us-east-1", "AWS_USE_FIPS_ENDPOINT", "true", "sts-fips.us-east-1.amazonaws.com"},
		{"eu-west-1", "AWS_USE_DUALSTACK_ENDPOINT", "true", "sts.eu-west-1.api.aws"},
		{"us-iso-east-1", "", "", "sts.us-iso-east-1.c2s.ic.gov"},
		{"eu-west-1", "AWS_ENDPOINT_URL_STS", "https://vpce.example:8443", "vpce.example:8443"},
		{"eu-west-1", "AWS_ENDPOINT_URL_STS", "http://vpce.example", ""},
	} {
		t.Run(tt.region+tt.name, func(t *testing.T) {
			o := chainOptions(t, "", staticFile)
			o.Region = tt.region
			if tt.name != "" {
				t.Setenv(tt.name, tt.value)
			}
			c, err := LoadCredentials(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			token, _, err := c.EKSToken(t.Context(), "prod")
			if tt.want == "" {
				if err == nil || !strings.Contains(err.Error(), "AWS_ENDPOINT_URL_STS") {
					t.Errorf("a token of %d bytes, %v", len(token), err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := presignedOf(t, token).Host; got != tt.want {
				t.Errorf("signed for %s, want %s", got, tt.want)
			}
		})
	}
}

func TestEKSTokenFailures(t *testing.T) {
	c, err := LoadCredentials(t.Context(), chainOptions(t, "", staticFile))
	if err != nil {
		t.Fatal(err)
	}
	for cluster, want := range map[string]string{"prod": "--aws-region", "": "--eks-cluster", "a\r\nb": "--eks-cluster"} {
		if token, _, err := c.EKSToken(t.Context(), cluster); err == nil || token != "" || !strings.Contains(err.Error(), want) || strings.ContainsAny(err.Error(), "\r\n") {
			t.Errorf("%q: %v", cluster, err)
		}
	}
	bare := NewCredentials(aws.NewCredentialsCache(c), CacheOptions{})
	if _, _, err := bare.EKSToken(t.Context(), "prod"); err == nil {
		t.Error("no error for credentials of unknown origin")
	}
	// A session that ends sooner ends its tokens.
	end := time.Now().Add(5 * time.Minute)
	o := chainOptions(t, "[default]\nregion = eu-central-1\n", staticFile)
	if c, err = LoadCredentials(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	s, _ := c.kept.Look()
	short := *s.Value
	short.CanExpire, short.Expires = true, end
	if err := c.kept.Put(t.Context(), &short); err != nil {
		t.Fatal(err)
	}
	if _, expires, err := c.EKSToken(t.Context(), "prod"); err != nil || !expires.Equal(end) {
		t.Errorf("%v, %v", expires, err)
	}
}
