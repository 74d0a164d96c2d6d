package main

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/sigv4"
)

const signatureName = "SigV4 signature"

// signed is what one signature costs.
type signed struct{ micros, allocations float64 }

// signature measures the signer alone, with a token as STS gives it.
func (b *bench) signature(ctx context.Context) error {
	if !b.runs(signatureName) {
		return nil
	}
	creds := sigv4.NewCredentials(credentials.NewStaticCredentialsProvider(accessKey, secretKey, sessionToken()), sigv4.CacheOptions{})
	if _, err := creds.Retrieve(ctx); err != nil {
		return err
	}
	s, err := sigv4.New(sigv4.Options{Region: "eu-central-1", Service: "eks",
		Credentials: creds})
	if err != nil {
		return err
	}
	r := &signer.Request{
		Method: http.MethodGet, Scheme: "https", Authority: "prod.example:6443", Path: smallPath,
		ContentSHA256: signer.EmptySHA256,
	}
	sent := []signer.Field{{Name: "accept", Value: "application/json"}, {Name: "user-agent", Value: userAgent}}
	var out signer.Fields
	var took, allocated []float64
	for range max(b.rounds, 3) {
		n := 0
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begin := time.Now()
		for time.Since(begin) < b.span/3 {
			for range 100 {
				out.Reset()
				if ok, err := s.SignFields(r, sent, &out); err != nil || !ok {
					return fmt.Errorf("signing: at once %v, %w", ok, err)
				}
			}
			n += 100
		}
		d := time.Since(begin)
		runtime.ReadMemStats(&after)
		took = append(took, micros(d)/float64(n))
		allocated = append(allocated, float64(after.Mallocs-before.Mallocs)/float64(n))
	}
	slices.Sort(allocated)
	b.results.signature = &signed{median(took), float64(int(median(allocated)*100)) / 100}
	fmt.Fprintf(b.out, "\n### %s, with a token of 900 bytes\n\n%.2f µs, %.0f allocations.\n", signatureName, b.results.signature.micros, b.results.signature.allocations)
	return nil
}
