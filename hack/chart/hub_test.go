package chart

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/hub/config"
)

// nodeFiles are the files of the ConfigMap for nodes.
type nodeFiles struct {
	config *config.Configuration
	pod    *corev1.Pod
	// unit are the directives of the unit by section, such as Service/Restart, in their order.
	unit map[string][]string
	text map[string]string
}

// servers is the least that the chart needs to be told.
func servers(more map[string]any) map[string]any {
	cloud := map[string]any{"servers": []any{"https://10.0.0.1:6443"}}
	maps.Copy(cloud, more)
	return cloud
}

func hubValues(hub map[string]any) map[string]any {
	hub["enabled"] = true
	return map[string]any{"hub": hub}
}

// filesOf renders the chart, and reads the files as a node does.
func filesOf(t *testing.T, values map[string]any) nodeFiles {
	t.Helper()
	t.Setenv("NODE_NAME", "edge") // as the unit or the pod has it
	f := nodeFiles{text: get[*corev1.ConfigMap](t, render(t, load(t), values), "ConfigMap/atoll-hub-node-files").Data, unit: map[string][]string{}}
	if names := slices.Sorted(maps.Keys(f.text)); !slices.Equal(names, []string{"atoll-hub.service", "hub.yaml", "static-pod.yaml"}) {
		t.Errorf("the files are %v", names)
	}
	var err error
	if f.config, err = config.Parse([]byte(f.text["hub.yaml"])); err != nil {
		t.Fatal(err)
	}
	object, _, err := strict.Decode([]byte(f.text["static-pod.yaml"]), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.pod = object.(*corev1.Pod)
	section := ""
	for line := range strings.Lines(f.text["atoll-hub.service"]) {
		line = strings.TrimSpace(line)
		name, value, isDirective := strings.Cut(line, "=")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		case isDirective && section != "":
			f.unit[section+"/"+name] = append(f.unit[section+"/"+name], value)
		default:
			t.Errorf("%q is no line of a unit", line)
		}
	}
	return f
}

// TestNoNodeFilesByDefault: and the values must say where the API servers are.
func TestNoNodeFilesByDefault(t *testing.T) {
	if render(t, load(t), nil)["ConfigMap/atoll-hub-node-files"] != nil {
		t.Error("the files are rendered")
	}
	for name, tc := range map[string]struct {
		hub  map[string]any
		says string
	}{
		"no server":             {map[string]any{}, "hub.config.cloud.servers"},
		"two certificates":      {map[string]any{"config": map[string]any{"cloud": servers(map[string]any{"certificateFile": "/a", "bootstrapKubeconfig": "/b"})}}, "not both"},
		"a directory in /opt":   {map[string]any{"config": map[string]any{"cloud": servers(nil), "directory": "/opt/hub"}}, "hub.config.directory"},
		"memory in tenths":      {map[string]any{"config": map[string]any{"cloud": servers(nil)}, "resources": map[string]any{"limits": map[string]any{"memory": "0.5Gi"}}}, "hub.resources.limits.memory"},
		"a value of no meaning": {map[string]any{"config": map[string]any{"cloud": servers(nil)}, "image": "x"}, "image"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := renderText(load(t), hubValues(tc.hub)); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// TestTheConfigurationOfNodes is one for all nodes, and takes every field of the hub's.
func TestTheConfigurationOfNodes(t *testing.T) {
	c := filesOf(t, hubValues(map[string]any{"config": map[string]any{"cloud": servers(nil)}})).config
	if c.NodeName != "edge" || c.Cloud.CertificateFile != "/var/lib/kubelet/pki/kubelet-client-current.pem" || c.ClientCAFile == "" {
		t.Errorf("the configuration is %+v", c)
	}
	f := filesOf(t, hubValues(map[string]any{"config": map[string]any{
		"cloud": servers(map[string]any{"bootstrapKubeconfig": "/etc/kubernetes/bootstrap-kubelet.conf", "returnWithin": "1m"}), "cache": map[string]any{"maxSize": "1Gi"},
	}}))
	if c := f.config; c.Cloud.CertificateFile != "" || c.Cloud.BootstrapKubeconfig == "" || c.Cloud.ReturnWithin.Minutes() != 1 || c.Cache.MaxSize.String() != "1Gi" {
		t.Errorf("the configuration is %+v", c)
	}
	if strings.Contains(f.text["hub.yaml"], "nodeName") {
		t.Error("the file is for one node")
	}
}

// TestHubSystemdUnit: the hub is always started again, waits for no network, and may do little.
func TestHubSystemdUnit(t *testing.T) {
	f := filesOf(t, hubValues(map[string]any{"config": map[string]any{"cloud": servers(nil)}}))
	for directive, want := range map[string]string{
		"Unit/Before": "kubelet.service", "Unit/StartLimitIntervalSec": "0", "Install/WantedBy": "multi-user.target",
		"Service/ExecStart": "/usr/local/bin/atoll-hub --config=/etc/atoll/hub.yaml", "Service/Restart": "always", "Service/MemoryMax": "512M",
		"Service/StateDirectory": "atoll-hub", "Service/StateDirectoryMode": "0700", "Service/UMask": "0077",
		"Service/ProtectSystem": "strict", "Service/NoNewPrivileges": "yes", "Service/CapabilityBoundingSet": "", "Service/PrivateTmp": "yes",
		"Service/PrivateDevices": "yes", "Service/ProtectHome": "yes", "Service/RestrictNamespaces": "yes", "Service/MemoryDenyWriteExecute": "yes",
	} {
		if got := f.unit[directive]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s is %q, want %q", directive, got, want)
		}
	}
	for directive, values := range f.unit {
		if strings.HasPrefix(directive, "Unit/After") || strings.HasPrefix(directive, "Unit/Requires") || strings.Contains(strings.Join(values, " "), "network-online") {
			t.Errorf("%s=%q: the hub waits for something", directive, values)
		}
	}
	f = filesOf(t, hubValues(map[string]any{"config": map[string]any{"cloud": servers(nil), "directory": "/var/lib/atoll/hub"}, "resources": map[string]any{"limits": map[string]any{"memory": "1Gi"}}}))
	if f.unit["Service/StateDirectory"][0] != "atoll/hub" || f.unit["Service/MemoryMax"][0] != "1G" {
		t.Errorf("the unit is %v", f.unit)
	}
}

// TestTheStaticPod can read the files of the configuration in their places and write into one directory,
// needs nothing of the API server, and may do little.
func TestTheStaticPod(t *testing.T) {
	for name, tc := range map[string]struct {
		config map[string]any
		reads  []string
	}{
		"with the kubelet's certificate": {
			map[string]any{"cloud": servers(nil)}, []string{"/etc/atoll", "/etc/kubernetes/pki", "/var/lib/kubelet/pki"},
		},
		"with one of its own": {
			map[string]any{"cloud": servers(map[string]any{"bootstrapKubeconfig": "/etc/atoll/bootstrap/kubeconfig"}), "cache": map[string]any{"encryptionKeyFile": "/run/keys/hub"}, "kubelet": map[string]any{"certificateFile": "/run/kubelet/pki/kubelet.crt"}, "observe": "[::1]:9000"},
			[]string{"/etc/atoll", "/etc/atoll/bootstrap", "/etc/kubernetes/pki", "/run/keys", "/run/kubelet/pki"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := filesOf(t, hubValues(map[string]any{"config": tc.config}))
			spec := f.pod.Spec
			if f.pod.Namespace != "kube-system" || !spec.HostNetwork || spec.PriorityClassName != "system-node-critical" || spec.ServiceAccountName != "" || len(spec.Containers) != 1 {
				t.Errorf("the pod is %+v", spec)
			}
			c := spec.Containers[0]
			if !slices.Equal(c.Command, []string{"/atoll-hub"}) || !slices.Equal(c.Args, []string{"--config=/etc/atoll/hub.yaml"}) || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("the container is %+v", c)
			}
			if len(c.Env) != 1 || c.Env[0].Name != "NODE_NAME" || c.Env[0].ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
				t.Errorf("its environment is %+v", c.Env)
			}
			if diff := cmp.Diff(&corev1.SecurityContext{
				RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}, c.SecurityContext); diff != "" {
				t.Errorf("what it may do (-want +got):\n%s", diff)
			}
			for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe} {
				host, port := probe.HTTPGet.Host, probe.HTTPGet.Port.String()
				if probe.HTTPGet.Path != "/healthz" || !slices.Contains([]string{host + ":" + port, "[" + host + "]:" + port}, f.config.Observe) {
					t.Errorf("the probe asks %s at port %s", host, port)
				}
			}
			var reads, writes []string
			for _, mount := range c.VolumeMounts {
				i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
				switch source := spec.Volumes[i].VolumeSource; {
				case source.EmptyDir != nil:
				case source.HostPath == nil:
					t.Errorf("a static pod has no volume %+v", source)
				case source.HostPath.Path != mount.MountPath:
					t.Errorf("%s is at %s: links would point elsewhere", source.HostPath.Path, mount.MountPath)
				case mount.ReadOnly:
					reads = append(reads, mount.MountPath)
				default:
					writes = append(writes, mount.MountPath)
				}
			}
			slices.Sort(reads)
			if !slices.Equal(reads, tc.reads) || !slices.Equal(writes, []string{f.config.Directory}) {
				t.Errorf("it reads %v and writes %v", reads, writes)
			}
			for _, file := range []string{f.config.ClientCAFile, f.config.Cloud.CAFile, f.config.Cloud.CertificateFile, f.config.Cloud.BootstrapKubeconfig, f.config.Cache.EncryptionKeyFile} {
				if file != "" && !slices.Contains(reads, path.Dir(file)) {
					t.Errorf("it cannot read %s", file)
				}
			}
		})
	}
}

// TestNodeFilesHaveNoSecrets: a ConfigMap may be read by many.
func TestNodeFilesHaveNoSecrets(t *testing.T) {
	f := filesOf(t, hubValues(map[string]any{"config": map[string]any{"cloud": servers(map[string]any{"bootstrapKubeconfig": "/etc/kubernetes/bootstrap-kubelet.conf"})}}))
	secret := regexp.MustCompile(`(?i)BEGIN [A-Z ]*PRIVATE KEY|token:|[a-z0-9]{6}\.[a-z0-9]{16}`)
	for name, text := range f.text {
		if found := secret.FindString(text); found != "" {
			t.Errorf("%s has %q", name, found)
		}
	}
}
