package clientauthentication_test

import (
	"fmt"
	"log"
	"os"
	"time"

	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// A plugin that sends the client to a proxy.
func Example() {
	// os.Getenv(clientauthentication.InfoVariable)
	info := `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",
		"spec":{"cluster":{"server":"https://k8s.example:6443","config":null},"interactive":false,"lockFilePath":"/run/user/1000/lock"}}`

	cred, err := clientauthentication.DecodeInfo([]byte(info))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cred.Spec.Cluster.Server, cred.Spec.LockFilePath)

	cred.Status = &clientauthentication.Status{
		ExpirationTimestamp:   time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
		ClientCertificateData: "PEM",
		ClientKeyData:         "PEM",
		ProxyConfig: &clientauthentication.ProxyConfig{
			URL:                      "unix:///run/user/1000/execproxy/a.sock",
			CertificateAuthorityData: []byte("PEM"),
		},
	}
	answer, err := cred.Encode()
	if err != nil {
		log.Fatal(err)
	}
	os.Stdout.Write(answer)
	// Output:
	// https://k8s.example:6443 /run/user/1000/lock
	// {"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"expirationTimestamp":"2100-01-01T00:00:00Z","clientCertificateData":"PEM","clientKeyData":"PEM","proxyConfig":{"url":"unix:///run/user/1000/execproxy/a.sock","certificate-authority-data":"UEVN"}}}
}
