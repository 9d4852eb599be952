package command

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

func (s *shared) pool() *cobra.Command {
	c := &cobra.Command{Use: "pool", Short: "Pools that go on while they are cut off from the cloud"}
	c.AddCommand(&cobra.Command{
		Use:     "kubeconfig NODEPOOL",
		Short:   "The kubeconfig with which people look into a pool while the cloud is away: fetch it before",
		Example: "  kubectl atoll pool kubeconfig hangzhou > hangzhou.kubeconfig",
		Args:    cobra.ExactArgs(1),

		ValidArgsFunction: func(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return s.completeKind(apps.GroupVersion.WithKind("NodePool"))(c, args, start)
		},
		RunE: func(c *cobra.Command, args []string) error {
			r, _, err := s.reader()
			if err != nil {
				return err
			}
			kubeconfig, err := kubeconfigOf(c.Context(), r, args[0])
			if err != nil {
				return err
			}
			if until := validUntil(kubeconfig); !until.IsZero() {
				_, _ = fmt.Fprintf(s.ErrOut, "It works until %s, and until the coordinator moves to another node.\n", until.UTC().Format(time.DateOnly))
			}
			_, err = s.Out.Write(kubeconfig)
			return err
		},
	})
	return c
}

// kubeconfigOf returns the kubeconfig for people of the coordinator of a NodePool.
func kubeconfigOf(ctx context.Context, r *read.Reader, pool string) ([]byte, error) {
	var all apps.YurtCoordinatorList
	if err := r.List(ctx, &all); err != nil {
		return nil, err
	}
	for i := range all.Items {
		y := &all.Items[i]
		if y.Spec.NodePool != pool {
			continue
		}
		if y.Status.KubeconfigSecret == "" {
			return nil, fmt.Errorf("YurtCoordinator %s has no kubeconfig yet: kubectl describe yurtcoordinator %[1]s tells why", y.Name)
		}
		secret := &corev1.Secret{}
		found, err := r.Get(ctx, client.ObjectKey{Namespace: governance.Namespace, Name: y.Status.KubeconfigSecret}, secret)
		switch {
		case err != nil:
			return nil, err
		case found && len(secret.Data["kubeconfig"]) > 0:
			return secret.Data["kubeconfig"], nil
		case len(r.Unread()) > 0:
			return nil, errors.New(r.Unread()[0])
		}
		return nil, fmt.Errorf("there is no Secret %s in namespace %s: kubectl describe yurtcoordinator %s tells why", y.Status.KubeconfigSecret, governance.Namespace, y.Name)
	}
	if len(r.Unread()) > 0 {
		return nil, errors.New(r.Unread()[0])
	}
	return nil, fmt.Errorf("NodePool %q has no coordinator: kubectl get yurtcoordinators lists those that there are", pool)
}

// validUntil returns when the client certificate of a kubeconfig expires; zero if that cannot be
// read.
func validUntil(kubeconfig []byte) time.Time {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return time.Time{}
	}
	block, _ := pem.Decode(config.CertData)
	if block == nil {
		return time.Time{}
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return cert.NotAfter
}
