package e2e

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// scraper returns the token of a ServiceAccount that may read metrics through the chart's
// role.
func (f *fixture) scraper() string {
	f.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: atoll.Namespace, Name: "scraper"}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scraper"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "atoll-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: atoll.Namespace, Name: "scraper"}},
	}
	for _, o := range []client.Object{account, binding} {
		if err := f.client.Create(f.ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			f.Fatal(err)
		}
	}
	token, err := f.kube.CoreV1().ServiceAccounts(atoll.Namespace).CreateToken(f.ctx, "scraper", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return token.Status.Token
}

// filterCalls returns the number of filter calls of kube-scheduler so far.
func (f *fixture) filterCalls() float64 {
	f.Helper()
	return f.metric("atoll_extender_request_seconds_count", `verb="filter"`)
}

// metric reads one of atoll-manager's metrics.
func (f *fixture) metric(name, labels string) float64 {
	f.Helper()
	return f.metrics()[name+"{"+labels+"}"]
}

// metrics reads all metrics of atoll-manager's first replica, by name{labels}. It waits for one that has lost its Lease on a
// busy machine and is started again.
func (f *fixture) metrics() (values map[string]float64) {
	f.Helper()
	f.eventually(patience, "atoll-manager serves its metrics", func() (err error) {
		values, err = f.metricsAt(f.atoll.MetricsURLs[0])
		return err
	})
	return values
}

// metricsAt reads all metrics of the replica that serves them at a URL.
func (f *fixture) metricsAt(url string) (map[string]float64, error) {
	f.Helper()
	token := f.scraper()
	ca, err := os.ReadFile(filepath.Join(f.atoll.TLSDir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(f.ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("reading metrics: %s", response.Status)
	}
	values := map[string]float64{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		line := lines.Text()
		space := strings.LastIndexByte(line, ' ')
		if space < 0 || line[0] == '#' {
			continue
		}
		value, err := strconv.ParseFloat(line[space+1:], 64)
		if err != nil {
			return nil, err
		}
		key := line[:space]
		if !strings.HasSuffix(key, "}") {
			key += "{}"
		}
		values[key] = value
	}
	return values, lines.Err()
}
