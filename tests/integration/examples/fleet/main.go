// Fleet is a controller in small: it reads ClusterProfiles in one cluster and says who
// it is in each of theirs, by way of execproxy.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"

	authentication "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/cluster-inventory-api/apis/v1alpha1"
	"sigs.k8s.io/cluster-inventory-api/client/clientset/versioned"
	"sigs.k8s.io/cluster-inventory-api/pkg/access"

	"github.com/execproxy/execproxy/proxy/client/clientgo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	providerFile := access.SetupProviderFileFlag()
	kubeconfig := flag.String("kubeconfig", "", "of the cluster that has the ClusterProfiles")
	namespace := flag.String("namespace", "", "theirs")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	hub, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	profiles, err := hub.ApisV1alpha1().ClusterProfiles(*namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}

	resolver := clientgo.New(clientgo.Options{})
	defer resolver.Close() // ends the proxies

	var all sync.WaitGroup
	lines := make([]string, len(profiles.Items))
	for i := range profiles.Items {
		all.Go(func() {
			name, err := whoAmI(ctx, resolver, *providerFile, &profiles.Items[i])
			if err != nil {
				name = "error: " + err.Error()
			}
			lines[i] = profiles.Items[i].Name + " " + name
		})
	}
	all.Wait()
	for _, line := range lines {
		fmt.Println(line)
	}
	return nil
}

// docs:begin
func connect(ctx context.Context, resolver *clientgo.Resolver, providerFile string, profile *v1alpha1.ClusterProfile) (*clientgo.Resolved, error) {
	providers, err := access.NewFromFile(providerFile) // anew: the library hands one profile's arguments to the next
	if err != nil {
		return nil, err
	}
	config, err := providers.BuildConfigFromCP(profile)
	if err != nil {
		return nil, err
	}
	return resolver.Resolve(ctx, config)
}

// docs:end

func whoAmI(ctx context.Context, resolver *clientgo.Resolver, providerFile string, profile *v1alpha1.ClusterProfile) (string, error) {
	resolved, err := connect(ctx, resolver, providerFile, profile)
	if err != nil {
		return "", err
	}
	defer resolved.Close()
	client, err := kubernetes.NewForConfigAndClient(resolved.Config, resolved.HTTPClient)
	if err != nil {
		return "", err
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authentication.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}
