package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
)

// lab is the namespace of the scene of PodGroups, and trainer the Deployment in it.
const (
	lab     = "lab"
	trainer = "deploy-with-volcano"
)

// updates are the images of the four updates of the Deployment (docs/sources.md, V7).
var updates = []string{"nginx:1.28", "nginx:1.29", "nginx:1.30", "nginx:1.31"}

// together shows PodGroups. Its pods stay Pending, because Volcano does not run here:
// each update creates one pod, and waits for it.
var together = scene{
	name:  "gangs",
	about: "a Deployment keeps one PodGroup through four updates, and the Job of a Workflow has its own; no Volcano runs here, so the pods stay Pending",
	gangs: true,
	begin: (*stage).watchPodGroups,
	acts: slices.Concat([]act{{
		commands: [][]string{
			{"apply", "-f", "test/demo/testdata/workflows.yaml"},
			{"wait", "--for=condition=Established", "--timeout=60s", "crd/workflows.argoproj.io"},
			{"apply", "-f", "examples/gangs/rules-use-cases.yaml"},
			{"create", "namespace", lab},
		},
		answers: []answer{{
			about: "events of the rules", want: "PodGroupRulesInForce", once: true,
			args: []string{"get", "-n", "volcano-system", "events", "--field-selector=reason=PodGroupRulesInForce", "-o", "jsonpath={.items[*].reason}"},
		}},
	}, {
		commands: [][]string{{"apply", "-n", lab, "-f", "examples/gangs/deployment.yaml"}},
		answers:  append(trainerUpdated(0), answer{about: "pods", args: jsonpathOf("pods", `{range .items[*]}{.status.phase} {end}`), want: "Pending Pending Pending"}),
	}}, updated(), []act{{
		commands: [][]string{{"create", "-n", lab, "-f", "examples/gangs/workflow.yaml"}},
		then:     (*stage).playArgo,
		answers: []answer{
			{about: "owners of Jobs", args: jsonpathOf("jobs", "{.items[*].metadata.ownerReferences[0].kind}"), want: "Workflow"},
			podGroupsOf("Deployment", "Job"),
			namesPodGroupOf("job-name", "Job"),
			namesPodGroupOf("app="+trainer, "Deployment"),
		},
	}, {
		commands: [][]string{
			{"get", "-n", lab, "podgroups", "-o", "custom-columns=PODGROUP:.metadata.name,OWNER:.metadata.ownerReferences[0].kind,NAME:.metadata.ownerReferences[0].name,MINMEMBER:.spec.minMember,CPU:.spec.minResources.cpu"},
			{"get", "-n", lab, "replicasets,jobs"},
		},
		answers: []answer{podGroupsOf("Deployment", "Job")},
		verdict: (*stage).judgePodGroups,
	}}),
}

// updated are the updates of the Deployment, one after the other.
func updated() (acts []act) {
	for i, image := range updates {
		acts = append(acts, act{
			commands: [][]string{{"set", "image", "-n", lab, "deployment/" + trainer, "web=" + image}},
			answers: append(trainerUpdated(i+1), answer{
				about: "pods of the newest ReplicaSet", want: "1",
				args: jsonpathOf("deployments", "{.items[*].status.updatedReplicas}"),
			}),
		})
	}
	return acts
}

// trainerUpdated are the expected answers when the Deployment has been updated n times
// and its pods are in the one PodGroup.
func trainerUpdated(n int) []answer {
	return []answer{
		{
			about: "images of ReplicaSets", want: strings.Join(append([]string{"nginx:1.27"}, updates[:n]...), " "),
			args: append(jsonpathOf("replicasets", "{.items[*].spec.template.spec.containers[0].image}"), `--sort-by={.metadata.annotations.deployment\.kubernetes\.io/revision}`),
		},
		podGroupsOf("Deployment"),
		namesPodGroupOf("app="+trainer, "Deployment"),
	}
}

func jsonpathOf(resource, path string) []string {
	return []string{"get", "-n", lab, resource, "-o", "jsonpath=" + path}
}

// podGroupsOf is the expected answer when there are exactly the PodGroups of owners of
// these kinds, in alphabetical order.
func podGroupsOf(kinds ...string) answer {
	return answer{
		about: "owners of PodGroups", want: strings.Join(kinds, " "),
		args: append(jsonpathOf("podgroups", "{.items[*].metadata.ownerReferences[0].kind}"), "--sort-by={.metadata.ownerReferences[0].kind}"),
	}
}

// namesPodGroupOf is the expected answer when each of the pods names the PodGroup of the
// only owner of a kind.
func namesPodGroupOf(pods, kind string) answer {
	return answer{
		about: "PodGroups of the pods " + pods, once: true,
		args:   append(jsonpathOf("pods", `{.items[*].metadata.annotations.scheduling\.k8s\.io/group-name}`), "-l", pods),
		wantOf: jsonpathOf("podgroups", `{.items[?(@.metadata.ownerReferences[0].kind=="`+kind+`")].metadata.name}`),
	}
}

// watchPodGroups adds a line for each change of a PodGroup from now on.
func (s *stage) watchPodGroups(ctx context.Context) error {
	s.mu.Lock()
	s.podGroups = map[types.UID]string{}
	s.mu.Unlock()
	return s.state.watch(ctx, &scheduling.PodGroup{}, whenever(s.seePodGroup))
}

func (s *stage) seePodGroup(o any) {
	group, ok := o.(*scheduling.PodGroup)
	if !ok || group.Namespace != lab || len(group.OwnerReferences) == 0 {
		return
	}
	owner := group.OwnerReferences[0]
	s.report("PodGroup "+group.Name, fmt.Sprintf("of %s %s, minMember %d, cpu %s", owner.Kind, owner.Name, group.Spec.MinMember, group.Spec.MinResources.Cpu()))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.podGroups[group.UID] = owner.Kind
}

// playArgo creates the Job of the Workflow, as Argo's controller would.
func (s *stage) playArgo(ctx context.Context) error {
	s.journal.add(note, "no Argo runs here: the Job is made by hand, with the Workflow as its owner")
	var parts [3]string
	for i, path := range []string{"{.items[0].metadata.name}", "{.items[0].metadata.uid}", "{.items[0].spec.templates[0].resource.manifest}"} {
		var err error
		if parts[i], err = s.ask(ctx, jsonpathOf("workflows", path)...); err != nil {
			return err
		}
	}
	job := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(parts[2]), &job.Object); err != nil {
		return fmt.Errorf("reading the manifest of the Workflow: %w", err)
	}
	if err := unstructured.SetNestedSlice(job.Object, []any{map[string]any{
		"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": parts[0], "uid": parts[1], "controller": true,
	}}, "metadata", "ownerReferences"); err != nil {
		return fmt.Errorf("writing the owner of the Job: %w", err)
	}
	raw, err := yaml.Marshal(job.Object)
	if err != nil {
		return fmt.Errorf("encoding the Job: %w", err)
	}
	if err := os.WriteFile(filepath.Join(s.cluster.Dir(), "job.yaml"), raw, 0o600); err != nil {
		return fmt.Errorf("writing the Job: %w", err)
	}
	return s.kubectlIn(ctx, s.cluster.Dir(), "create", "-n", lab, "-f", "job.yaml")
}

// judgePodGroups returns the failures. Every PodGroup that ever existed counts, also one
// that was deleted and created again.
func (s *stage) judgePodGroups() (text string, failures []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := map[string][]string{}
	for uid, kind := range s.podGroups {
		of[kind] = append(of[kind], string(uid))
	}
	for _, kind := range []string{"Deployment", "Job"} {
		if len(of[kind]) != 1 {
			failures = append(failures, fmt.Sprintf("the %s had %d PodGroups, wanted 1", kind, len(of[kind])))
		}
	}
	if len(s.podGroups) != 2 {
		failures = append(failures, fmt.Sprintf("there were %d PodGroups in all, wanted 2", len(s.podGroups)))
	}
	return fmt.Sprintf("through %d updates the Deployment had one PodGroup, with the UID %s", len(updates), strings.Join(of["Deployment"], ", ")), failures
}
