package images

import "time"

// Manager is what the image of atoll-manager is made from: that of users, and that of the
// devcluster.
type Manager struct {
	// Program, Hub and License are files of this machine: atoll-manager, atoll-hub and the licence. Hub is
	// "" for an image that no node runs atoll-hub from.
	Program, Hub, License string
	// Architecture is the GOARCH of the program.
	Architecture string
	// Version is that of the chart. Revision is the commit of the source, "" if unknown.
	Version, Revision string
	// Created is the time of the commit, the zero time if unknown.
	Created time.Time
}

// Spec returns the description of the image: static programs, a licence, nothing else.
func (m Manager) Spec() Spec {
	const program = "/atoll-manager"
	programs := map[string]string{program: m.Program}
	if m.Hub != "" {
		programs["/atoll-hub"] = m.Hub
	}
	return Spec{
		Programs:     programs,
		Texts:        map[string]string{"/LICENSE": m.License},
		Entrypoint:   []string{program},
		Architecture: m.Architecture,
		Labels: map[string]string{
			"org.opencontainers.image.title":       "atoll-manager",
			"org.opencontainers.image.description": "Controllers, admission webhooks, scheduler extender and hub of Atoll",
			"org.opencontainers.image.source":      "https://github.com/atoll-k8s/atoll",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     m.Version,
			"org.opencontainers.image.revision":    m.Revision,
		},
		Created: m.Created,
	}
}
