package keyfile_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"sync/atomic"

	"github.com/execproxy/execproxy/signer/keyfile"
)

// A client that presents the key, and the next one once the files change.
func ExampleKey_Watch() {
	key, err := keyfile.Load("client.key", "client.crt")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, w := range key.Warnings() {
		log.Print(w)
	}
	var current atomic.Pointer[keyfile.Key]
	current.Store(key)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_ = key.Watch(ctx, func(k *keyfile.Key, err error) {
			if err != nil {
				log.Print(err) // and keep the old one
				return
			}
			current.Store(k)
		})
	}()
	_ = &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return current.Load().TLSCertificate(), nil
	}}
	// Output: key file client.key: no such file: check the path
}
