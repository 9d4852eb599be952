package atoll

import (
	"context"
	"fmt"
	"io"

	"github.com/atoll-k8s/atoll/devcluster"
)

// Hub is the name of atoll-hub as a program of real nodes.
const Hub = "atoll-hub"

// hubAddress is where the hub of a node serves.
const hubAddress = "127.0.0.1:10261"

// NewHub builds atoll-hub from the source of this module's Atoll, and returns it for real nodes.
func NewHub(ctx context.Context, log io.Writer) (*devcluster.Gateway, error) {
	source, err := sourceDir(ctx)
	if err != nil {
		return nil, err
	}
	binary, err := build(ctx, source, Hub, log)
	if err != nil {
		return nil, err
	}
	return &devcluster.Gateway{
		Name: Hub, Path: binary, URL: "https://" + hubAddress, CAFile: "serving/ca.crt",
		Configure: func(v devcluster.GatewayValues) ([]string, []byte) {
			return []string{"--config=" + v.ConfigFile}, fmt.Appendf(nil, `apiVersion: hub.atoll.dev/v1alpha1
kind: HubConfiguration
nodeName: %s
listen: %s
directory: %s
clientCAFile: %s
cloud:
  servers: [%q]
  caFile: %[4]s
  certificateFile: %[6]s
  returnWithin: 2s
`, v.NodeName, hubAddress, v.Directory, v.CAFile, v.Server, v.CertificateFile)
		},
	}, nil
}
