package demo

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/sigv4"
)

// The SigV4 scope and the access key's id; its secret and token are made anew by every run.
const (
	region    = "eu-central-1"
	service   = "execproxy"
	accessKey = "ASIAEXECPROXYDEMO000"
)

// sigV4 is the exchange with an access key from a shared credentials file.
func (d *demo) sigV4(ctx context.Context) error {
	d.begin("Request signatures (AWS SigV4)")
	id := identity{name: "sigv4", who: robot}
	if err := d.do(ctx, "key", func(context.Context) (string, error) {
		file, err := d.place.write("credentials", []byte(
			"[demo]\naws_access_key_id = "+accessKey+"\naws_secret_access_key = "+d.secret+"\naws_session_token = "+d.token+"\n"))
		if err != nil {
			return "", err
		}
		id.env = []string{"AWS_SHARED_CREDENTIALS_FILE=" + file, "AWS_CONFIG_FILE=" + file + ".none",
			"AWS_EC2_METADATA_DISABLED=true"}
		id.extension = map[string]any{"auth": "sigv4", "awsProfile": "demo", "awsRegion": region, "awsService": service}
		id.secrets = map[string][]byte{"secret access key": []byte(d.secret), "session token": []byte(d.token),
			"access key id": []byte(accessKey)}
		return "temporary access key of role deployer in a shared credentials file, mode 0600", nil
	}); err != nil {
		return err
	}
	return d.exchange(ctx, id, step{"tampered", d.tampered})
}

// newSecret makes a secret; nothing that is printed or handed out may hold it.
func newSecret() string {
	var b [20]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails since Go 1.24
	return hex.EncodeToString(b[:])
}

// tampered signs a request, shows that the signature is good, and sends it again with another query.
func (d *demo) tampered(ctx context.Context) (string, error) {
	s, err := sigv4.New(sigv4.Options{
		Region: region, Service: service,
		Credentials: credentials.NewStaticCredentialsProvider(accessKey, d.secret, d.token),
	})
	if err != nil {
		return "", err
	}
	fields, err := s.SignRequest(ctx, &signer.Request{
		Method: http.MethodGet, Scheme: "https", Authority: d.server.Address(), Path: podsPath, RawQuery: "limit=1",
		Header: http.Header{}, ContentSHA256: signer.EmptySHA256,
	})
	if err != nil {
		return "", err
	}
	rt := directly(d.server.ClientConfig())
	defer rt.CloseIdleConnections()
	send := func(query string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.server.URL()+podsPath+"?"+query, nil)
		if err != nil {
			return nil, err
		}
		req.Header = fields.Clone()
		return rt.RoundTrip(req)
	}
	resp, err := send("limit=1")
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }()
		return "", fmt.Errorf("the signature as it was made: %s", told(resp))
	}
	_ = resp.Body.Close()
	if resp, err = send("limit=2"); err != nil {
		return "", err
	}
	message, err := refusal(resp)
	if err != nil {
		return "", err
	}
	return "signed for ?limit=1, sent as ?limit=2, straight to the API server: " + message, nil
}
