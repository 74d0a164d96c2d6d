package sigv4_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/sigv4"
)

// A signer and a verifier. The verifier holds a key for the day, not the secret.
func Example() {
	clock := func() time.Time { return time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC) }
	s, err := sigv4.New(sigv4.Options{
		Region:      "eu-central-1",
		Service:     "eks",
		Credentials: credentials.NewStaticCredentialsProvider("AKIDEXAMPLE", "secret", ""),
		Clock:       clock,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := &signer.Request{
		Method: "GET", Scheme: "https", Authority: "prod:6443",
		Path: "/api/v1/pods", RawQuery: "limit=500", Header: http.Header{},
		ContentSHA256: signer.EmptySHA256,
	}
	fields, err := s.SignRequest(context.Background(), r)
	if err != nil {
		fmt.Println(err)
		return
	}
	for name, values := range fields {
		r.Header[name] = values
	}

	key := sigv4.DeriveKey("secret", "20260901", "eu-central-1", "eks")
	v := sigv4.Verifier{
		Region: "eu-central-1", Service: "eks", Clock: clock,
		Lookup: func(accessKeyID, date, region, service string) ([]byte, sigv4.Identity, error) {
			if accessKeyID != "AKIDEXAMPLE" || date != "20260901" {
				return nil, sigv4.Identity{}, sigv4.ErrUnknownKey
			}
			return key, sigv4.Identity{User: "jane", Groups: []string{"dev"}}, nil
		},
	}
	id, err := v.Verify(r)
	fmt.Println(id.User, err)

	r.RawQuery = "limit=5000"
	_, err = v.Verify(r)
	fmt.Println(errors.Is(err, sigv4.ErrSignature))
	// Output:
	// jane <nil>
	// true
}
