// Command controller is a controller-runtime manager behind execproxy. It labels the config
// maps of a namespace with the length of their data:
//
//	controller --kubeconfig prod.execproxy --namespace default --metrics 127.0.0.1:8080
//
// What execproxy needs of it is in [manage] and metrics.go; the rest is any controller.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"

	"github.com/go-logr/logr"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/execproxy/execproxy/proxy/client/clientgo"
)

const label = "example.com/entries"

func main() {
	namespace := flag.String("namespace", "default", "the namespace to watch, and to elect a leader in")
	address := flag.String("metrics", "0", "address of the metrics, 0 for none")
	flag.Parse() // with --kubeconfig, which controller-runtime brings
	log := zap.New()
	ctrl.SetLogger(log)
	if err := manage(ctrl.SetupSignalHandler(), log, *namespace, *address); err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

// manage runs the manager until ctx ends.
func manage(ctx context.Context, log logr.Logger, namespace, address string) (err error) {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	resolver := clientgo.New(clientgo.Options{Metrics: register(metrics.Registry), Stderr: os.Stderr})
	defer func() { err = errors.Join(err, resolver.Close()) }()
	resolved, err := resolver.Resolve(ctx, config)
	if err != nil {
		return err
	}
	// The manager, its cache, its client and its leader election make HTTP clients of this
	// one rest.Config, over the one transport that is in it. A cluster.Cluster may be given
	// resolved.HTTPClient as well.
	mgr, err := ctrl.NewManager(resolved.Config, ctrl.Options{
		Logger:                        log,
		Cache:                         cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Metrics:                       server.Options{BindAddress: address},
		LeaderElection:                true,
		LeaderElectionID:              "controller.example.com",
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	c := &counter{mgr.GetClient()}
	if err := ctrl.NewControllerManagedBy(mgr).For(&core.ConfigMap{}).Complete(c); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// counter keeps the label.
type counter struct{ client.Client }

// Reconcile implements reconcile.Reconciler.
func (c *counter) Reconcile(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	var m core.ConfigMap
	if err := c.Get(ctx, r.NamespacedName, &m); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	n := strconv.Itoa(len(m.Data))
	if m.Labels[label] == n {
		return ctrl.Result{}, nil
	}
	changed := m.DeepCopy()
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	changed.Labels[label] = n
	err := c.Patch(ctx, changed, client.MergeFromWithOptions(&m, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return ctrl.Result{Requeue: true}, nil
	}
	return ctrl.Result{}, client.IgnoreNotFound(err)
}
