package client_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"

	"github.com/execproxy/execproxy/proxy/client"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// A program that reads from a cluster through the proxy that its plugin starts.
func Example() {
	// In place of Command: "execproxy", Args: []string{"exec"}.
	plugin, env, remove := testPlugin()
	defer remove()

	c, err := client.New(client.Options{
		Command: plugin,
		Env:     env,
		Cluster: clientauthentication.Cluster{Server: "https://k8s.example:6443"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	hc := &http.Client{Transport: c.RoundTripper()}
	resp, err := hc.Get("https://k8s.example:6443/version")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		log.Fatal(err)
	}
	fmt.Println(resp.Status, resp.Proto)
	// Output: 200 OK HTTP/2.0
}

// testPlugin is this test binary, which plays a plugin when it is told to.
func testPlugin() (command string, env []string, remove func()) {
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		log.Fatal(err)
	}
	return os.Args[0], append(os.Environ(), "CLIENT_TEST_PLUGIN=serve", "SOCKET="+dir+"/s"), func() { os.RemoveAll(dir) }
}
