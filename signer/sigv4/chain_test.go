package sigv4

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

// chainOptions make a chain of the given files alone: nothing of this machine.
func chainOptions(t *testing.T, configFile, credentialsFile string) CredentialsOptions {
	t.Helper()
	for _, env := range os.Environ() {
		if name, _, _ := strings.Cut(env, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
			os.Unsetenv(name)
		}
	}
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	files := []string{filepath.Join(dir, "config"), filepath.Join(dir, "credentials")}
	for i, text := range []string{configFile, credentialsFile} {
		if err := os.WriteFile(files[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return CredentialsOptions{SDK: []func(*config.LoadOptions) error{
		config.WithSharedConfigFiles(files[:1]),
		config.WithSharedCredentialsFiles(files[1:]),
		config.WithEC2IMDSClientEnableState(imds.ClientDisabled),
	}}
}

const staticFile = `
[default]
aws_access_key_id = AKIDDEFAULT
aws_secret_access_key = ` + testSecret + `
[other]
aws_access_key_id = AKIDOTHER
aws_secret_access_key = ` + testSecret + `
`

func TestLoadCredentials(t *testing.T) {
	o := chainOptions(t, "[default]\nregion = eu-west-1\n[profile other]\nregion = eu-west-2\n", staticFile)
	for _, tc := range []struct {
		profile, region, env string
		wantID, wantRegion   string
	}{
		{"", "", "", "AKIDDEFAULT", "eu-west-1"},
		{"other", "", "", "AKIDOTHER", "eu-west-2"},
		{"", "us-east-1", "", "AKIDDEFAULT", "us-east-1"},
		{"", "", "AKIDENV", "AKIDENV", "eu-west-1"},
		{"other", "", "AKIDENV", "AKIDOTHER", "eu-west-2"},
	} {
		if tc.env != "" {
			t.Setenv("AWS_ACCESS_KEY_ID", tc.env)
			t.Setenv("AWS_SECRET_ACCESS_KEY", testSecret)
		}
		o.Profile, o.Region = tc.profile, tc.region
		c, err := LoadCredentials(t.Context(), o)
		if err != nil {
			t.Errorf("%+v: %v", tc, err)
			continue
		}
		creds, err := c.Retrieve(t.Context())
		if err != nil || creds.AccessKeyID != tc.wantID || c.Region() != tc.wantRegion {
			t.Errorf("%+v: got %s in %s, %v", tc, creds.AccessKeyID, c.Region(), err)
		}
	}
}

// TestFilesChange: a refresh walks the chain anew, so that what another tool wrote counts.
func TestFilesChange(t *testing.T) {
	o := chainOptions(t, "", staticFile)
	now := testTime
	o.Clock = func() time.Time { return now }
	c, err := LoadCredentials(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(os.Getenv("HOME"), "credentials")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(staticFile, "AKIDDEFAULT", "AKIDNEW")), 0o600); err != nil {
		t.Fatal(err)
	}
	now = now.Add(restless)
	c.Invalidate()
	if creds, err := c.Retrieve(t.Context()); err != nil || creds.AccessKeyID != "AKIDNEW" {
		t.Errorf("got %s, %v", creds.AccessKeyID, err)
	}
}

// process writes a credential process. With exec it is the child that the SDK kills; what
// that child leaves behind, the SDK waits for.
func process(t *testing.T, script string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the process is a shell script")
	}
	path := filepath.Join(t.TempDir(), "process")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return "[default]\nregion = eu-west-1\ncredential_process = exec " + path + "\n"
}

func TestCredentialProcess(t *testing.T) {
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	good := fmt.Sprintf(`echo '{"Version":1,"AccessKeyId":"AKIDPROC","SecretAccessKey":"%s","SessionToken":"%s","Expiration":"%s"}'`,
		testSecret, testToken, expires.Format(time.RFC3339))
	c, err := LoadCredentials(t.Context(), chainOptions(t, process(t, good), ""))
	if err != nil {
		t.Fatal(err)
	}
	creds, err := c.Retrieve(t.Context())
	if err != nil || creds.AccessKeyID != "AKIDPROC" || creds.SessionToken != testToken || !creds.Expires.Equal(expires) {
		t.Errorf("got %s until %s, %v", creds.AccessKeyID, creds.Expires, err)
	}
	for name, tc := range map[string]struct{ script, want string }{
		"exit":      {"echo " + testSecret + "; exit 3", "exit status 3"},
		"no JSON":   {"echo 'AKIDPROC " + testSecret + "'", "did not print one valid document"},
		"cut short": {`echo '{"Version":1,"SecretAccessKey":"` + testSecret + `"'`, "did not print one valid document"},
		"hangs":     {"echo " + testSecret + "; exec sleep 3 2>/dev/null", "gave up after 500ms"},
	} {
		var log bytes.Buffer
		o := chainOptions(t, process(t, tc.script), "")
		o.Timeout = 500 * time.Millisecond
		if name != "hangs" {
			o.Timeout = 30 * time.Second
		}
		o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		start := time.Now()
		_, err := LoadCredentials(t.Context(), o)
		var unavailable *CredentialsError
		if !errors.As(err, &unavailable) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "by hand") {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
			continue
		}
		if time.Since(start) > 20*time.Second {
			t.Errorf("%s: took %s", name, time.Since(start))
		}
		for e := error(err); e != nil; e = errors.Unwrap(e) {
			if strings.Contains(e.Error(), testSecret) {
				t.Errorf("%s: %T shows what the process printed", name, e)
			}
		}
		if strings.Contains(log.String(), testSecret) {
			t.Errorf("%s: the log shows what the process printed", name)
		}
	}
}

// fakeSTS answers AssumeRole.
func fakeSTS(t *testing.T, answer func(form url.Values) (int, string)) config.LoadOptionsFunc {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		status, body := answer(r.PostForm)
		w.Header().Set("Connection", "close")
		w.Header().Set("Content-Type", "text/xml")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	return config.WithBaseEndpoint(server.URL)
}

func TestAssumeRole(t *testing.T) {
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	o := chainOptions(t, "[default]\nregion = eu-west-1\n", staticFile)
	o.RoleARN, o.ExternalID = "arn:aws:iam::123456789012:role/reader", "from-us"
	o.SDK = append(o.SDK, fakeSTS(t, func(form url.Values) (int, string) {
		if form.Get("Action") != "AssumeRole" || form.Get("RoleArn") != o.RoleARN || form.Get("ExternalId") != "from-us" || form.Get("RoleSessionName") != "execproxy" {
			return 403, `<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>not allowed</Message></Error></ErrorResponse>`
		}
		return 200, `<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials><AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>` +
			testSecret + `</SecretAccessKey><SessionToken>` + testToken + `</SessionToken><Expiration>` + expires.Format(time.RFC3339) + `</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`
	}))
	c, err := LoadCredentials(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := c.Retrieve(t.Context())
	if err != nil || creds.AccessKeyID != "ASIAROLE" || creds.SessionToken != testToken || !creds.Expires.Equal(expires) {
		t.Errorf("got %s until %s, %v", creds.AccessKeyID, creds.Expires, err)
	}
	o.ExternalID = "wrong"
	_, err = LoadCredentials(t.Context(), o)
	for _, want := range []string{"assume role arn:aws:iam::123456789012:role/reader", "AccessDenied", "--aws-external-id"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	o.RoleARN = ""
	if _, err := LoadCredentials(t.Context(), o); err == nil || !strings.Contains(err.Error(), "external id without a role") {
		t.Errorf("got %v", err)
	}
}

// TestEndpointHangs: an STS that accepts and never answers costs Timeout, once per attempt;
// the next attempt is a new one.
func TestEndpointHangs(t *testing.T) {
	hang := make(chan struct{})
	o := chainOptions(t, "[default]\nregion = eu-west-1\n", staticFile)
	o.RoleARN, o.Timeout = "arn:aws:iam::123456789012:role/reader", 300*time.Millisecond
	o.SDK = append(o.SDK, fakeSTS(t, func(url.Values) (int, string) { <-hang; return 500, "" }))
	t.Cleanup(func() { close(hang) })
	start := time.Now()
	_, err := LoadCredentials(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "gave up after 300ms") || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %s", took)
	}
}

// TestNothingConfigured: off EC2 there is no metadata service; the chain must end, and say
// where it looked.
func TestNothingConfigured(t *testing.T) {
	o := chainOptions(t, "", "")
	_, err := LoadCredentials(t.Context(), o)
	for _, want := range []string{"tried environment, shared files, SSO", "instance metadata", "--aws-profile", "aws sts get-caller-identity"} {
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	// A metadata address that swallows everything.
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	t.Cleanup(func() { close(hang); server.Close() })
	o.Timeout = 400 * time.Millisecond
	o.SDK = append(o.SDK, config.WithEC2IMDSClientEnableState(imds.ClientEnabled), config.WithEC2IMDSEndpoint(server.URL))
	start := time.Now()
	if _, err := LoadCredentials(t.Context(), o); err == nil || !strings.Contains(err.Error(), "gave up after 400ms") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestBadConfiguration(t *testing.T) {
	o := chainOptions(t, "", staticFile)
	o.Profile = "absent"
	_, err := LoadCredentials(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), `there is no profile "absent"`) || !strings.Contains(err.Error(), "list-profiles") {
		t.Errorf("got %v", err)
	}
	for _, broken := range []string{
		"[default\naws_secret_access_key = " + testSecret,
		"[default]\naws_access_key_id = AKID\naws_secret_access_key " + testSecret,
		"[default]\naws_secret_access_key = " + testSecret,
		testSecret + "\n= " + testSecret,
	} {
		_, err := LoadCredentials(t.Context(), chainOptions(t, "", broken))
		if err == nil || strings.Contains(err.Error(), testSecret) {
			t.Errorf("%q: got %v", broken, err)
		}
	}
	o = chainOptions(t, "[profile sso]\nregion = eu-west-1\nsso_session = s\nsso_account_id = 1\nsso_role_name = r\n[sso-session s]\nsso_region = eu-west-1\nsso_start_url = https://x\n", "")
	o.Profile = "sso"
	if _, err = LoadCredentials(t.Context(), o); err == nil || !strings.Contains(err.Error(), "aws sso login --profile sso") {
		t.Errorf("got %v", err)
	}
}
