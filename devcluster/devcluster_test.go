package devcluster

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/atoll-k8s/atoll/devcluster/binaries"
)

func TestOptionsAreChecked(t *testing.T) {
	tests := map[string]struct {
		options Options
		wantErr bool
	}{
		"nothing set":              {},
		"a fine name":              {options: Options{Name: "edge-1"}},
		"an upper case name":       {options: Options{Name: "Edge"}, wantErr: true},
		"a name that climbs":       {options: Options{Name: "../x"}, wantErr: true},
		"a long name":              {options: Options{Name: strings.Repeat("x", 41)}, wantErr: true},
		"a negative delay":         {options: Options{PodStartDelay: -time.Second}, wantErr: true},
		"an unknown audit level":   {options: Options{AuditLog: "All"}, wantErr: true},
		"arguments of a component": {options: Options{ComponentArgs: map[string][]string{Etcd: {"--x"}}}},
		"arguments of a stranger":  {options: Options{ComponentArgs: map[string][]string{"etdc": {"--x"}}}, wantErr: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := test.options.setDefaults()
			if (err != nil) != test.wantErr {
				t.Errorf("error %v, want one = %t", err, test.wantErr)
			}
			if err == nil && (test.options.Name == "" || !filepath.IsAbs(test.options.Dir)) {
				t.Errorf("defaults are missing: %+v", test.options)
			}
		})
	}
}

func TestStartRefusesADirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	options := Options{Dir: dir}
	if err := options.setDefaults(); err != nil {
		t.Fatal(err)
	}
	if _, err := create(t.Context(), options, binaries.Set{}, binaries.Set{}); err == nil {
		t.Error("a cluster is made in a directory that holds files")
	}
}

func TestFreePorts(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Fatalf("port %d is given out twice", port)
		}
		seen[port] = true
		listener, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err != nil {
			t.Fatalf("port %d is not free: %v", port, err)
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSchedulerConfigIsCompleted(t *testing.T) {
	tests := map[string]struct {
		config  string
		want    map[string]any // dotted path to value
		wantErr bool
	}{
		"nothing given": {want: map[string]any{
			"kind": "KubeSchedulerConfiguration", "clientConnection.kubeconfig": "/k",
			"clientConnection.qps": float64(schedulerQPS), "leaderElection.leaderElect": false,
		}},
		"the caller's values stay": {
			config: "clientConnection: {qps: 7}\nleaderElection: {leaderElect: true}\nprofiles: [{schedulerName: x}]",
			want: map[string]any{
				"clientConnection.kubeconfig": "/k", "clientConnection.qps": float64(7),
				"leaderElection.leaderElect": true,
			},
		},
		"the kubeconfig is always ours": {
			config: "clientConnection: {kubeconfig: /else}",
			want:   map[string]any{"clientConnection.kubeconfig": "/k"},
		},
		"not an object":      {config: "clientConnection: 3", wantErr: true},
		"not YAML":           {config: "\t{", wantErr: true},
		"a list of profiles": {config: "[]", wantErr: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			data, err := completeSchedulerConfig([]byte(test.config), "/k")
			if (err != nil) != test.wantErr {
				t.Fatalf("error %v, want one = %t", err, test.wantErr)
			}
			var got map[string]any
			if err := yaml.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			for path, want := range test.want {
				var value any = got
				for key := range strings.SplitSeq(path, ".") {
					value = value.(map[string]any)[key]
				}
				if value != want {
					t.Errorf("%s is %v, want %v", path, value, want)
				}
			}
		})
	}
}

func TestSimulatedAddressesStayInTheirNetwork(t *testing.T) {
	_, network, err := net.ParseCIDR("198.18.0.0/15")
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range NumberedNodes("node-", 1000) {
		if address := simulatedAddress(spec.Name); !network.Contains(net.ParseIP(address)) {
			t.Fatalf("address of %s is %s", spec.Name, address)
		}
	}
}
