package images

import "time"

// Manager is what the image of atoll-manager is made from: that of users, and that of the
// devcluster.
type Manager struct {
	// Program and License are files of this machine: atoll-manager and the licence.
	Program, License string
	// Beside are the other programs of the image: files of this machine by their names, such as atoll-hub.
	Beside map[string]string
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
	for name, file := range m.Beside {
		programs["/"+name] = file
	}
	return Spec{
		Programs:     programs,
		Texts:        map[string]string{"/LICENSE": m.License},
		Entrypoint:   []string{program},
		Architecture: m.Architecture,
		Labels: map[string]string{
			"org.opencontainers.image.title":       "atoll-manager",
			"org.opencontainers.image.description": "Controllers, admission webhooks, scheduler extender, hub and coordinator of Atoll",
			"org.opencontainers.image.source":      "https://github.com/atoll-k8s/atoll",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     m.Version,
			"org.opencontainers.image.revision":    m.Revision,
		},
		Created: m.Created,
	}
}
