// Command webhook does what CastSlice's webhook does, in the way that is usual for one in Go: controller-runtime's
// server, the pod decoded into its type, changed, encoded again, and the patch found by comparing both texts.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	optimize     = "castops.io/optimize"
	sliceRatio   = "castops.io/slice-ratio"
	workloadType = "castops.io/workload-type"
	wholeGPU     = corev1.ResourceName("nvidia.com/gpu")
	sharedGPU    = corev1.ResourceName("nvidia.com/gpu-shared")
)

var presets = map[string]int64{"training": 4, "inference": 2, "batch": 2, "dev": 1}

type optimizer struct {
	decoder admission.Decoder
}

func (o *optimizer) Handle(ctx context.Context, request admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := o.decoder.Decode(request, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if pod.Annotations[optimize] != "true" {
		return admission.Allowed("not to be optimized")
	}
	slots, err := slotsOf(pod.Annotations)
	if err != nil {
		return admission.Denied(err.Error())
	}
	changed := false
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for index := range containers {
			resources := &containers[index].Resources
			changed = share(resources.Limits, slots) || changed
			changed = share(resources.Requests, slots) || changed
		}
	}
	if !changed {
		return admission.Allowed("asks for no GPU")
	}
	log.FromContext(ctx).Info("rewritten", "generateName", pod.GenerateName, "slots", slots)
	rewritten, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, rewritten)
}

func share(resources corev1.ResourceList, slots int64) bool {
	if _, asked := resources[wholeGPU]; !asked {
		return false
	}
	delete(resources, wholeGPU)
	resources[sharedGPU] = *resource.NewQuantity(slots, resource.DecimalSI)
	return true
}

func slotsOf(annotations map[string]string) (int64, error) {
	if text, given := annotations[sliceRatio]; given {
		slots, err := strconv.ParseInt(text, 10, 32)
		if err != nil || slots < 1 {
			return 0, fmt.Errorf("annotation %s: %q is not a positive whole number", sliceRatio, text)
		}
		return slots, nil
	}
	if text, given := annotations[workloadType]; given {
		slots, known := presets[text]
		if !known {
			return 0, fmt.Errorf("annotation %s: %q is not a workload type", workloadType, text)
		}
		return slots, nil
	}
	return 1, nil
}

func run() error {
	port := flag.Int("port", 9443, "serve HTTPS here, on 127.0.0.1")
	certificates := flag.String("certificates", ".", "folder with tls.crt and tls.key")
	flag.Parse()
	log.SetLogger(zap.New())
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return err
	}
	server := webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: *port, CertDir: *certificates})
	server.Register("/mutate", &webhook.Admission{Handler: &optimizer{decoder: admission.NewDecoder(scheme)}})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return server.Start(ctx)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
