package clientgo_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/execproxy/execproxy/proxy/client/clientgo"
)

// A program that reads from a cluster through the proxy that its kubeconfig's plugin starts.
func Example() {
	config, remove := testConfig() // in place of clientcmd, as in ExampleResolver_Resolve
	defer remove()

	r := clientgo.New(clientgo.Options{Stderr: os.Stderr})
	defer r.Close()
	res, err := r.Resolve(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	resp, err := res.HTTPClient.Get(res.Config.Host + "/version")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, resp.Proto)
	// Output: 200 OK HTTP/2.0
}

// From a kubeconfig to what clientsets, dynamic clients and managers are made of.
func ExampleResolver_Resolve() {
	config, err := clientcmd.BuildConfigFromFlags("", "prod.execproxy")
	if err != nil {
		log.Fatal(err)
	}
	r := clientgo.New(clientgo.Options{})
	defer r.Close() // ends the proxy
	res, err := r.Resolve(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	// kubernetes.NewForConfigAndClient(res.Config, res.HTTPClient)
	// ctrl.NewManager(res.Config, ctrl.Options{…})
	streams, err := res.StreamConfig()
	if err != nil {
		log.Fatal(err)
	}
	// remotecommand.NewWebSocketExecutor(streams, http.MethodGet, url)
	_ = streams
}

// testConfig names this test binary as plugin, which plays one when it is told to.
func testConfig() (config *rest.Config, remove func()) {
	dir, err := os.MkdirTemp("", "g")
	if err != nil {
		log.Fatal(err)
	}
	return &rest.Config{
		Host: "https://k8s.example:6443",
		ExecProvider: &api.ExecConfig{
			APIVersion: "client.authentication.k8s.io/v1", Command: os.Args[0], ProvideClusterInfo: true,
			InteractiveMode: api.NeverExecInteractiveMode,
			Env: []api.ExecEnvVar{
				{Name: "CLIENTGO_TEST_PLUGIN", Value: "serve"}, {Name: "COUNT", Value: dir + "/count"}, {Name: "SOCKET", Value: dir + "/s"},
			},
		},
	}, func() { os.RemoveAll(dir) }
}
