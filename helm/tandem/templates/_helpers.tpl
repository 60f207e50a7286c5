{{- define "tandem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 36 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 36 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 36 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What finds a component's pods, and never changes: (dict "root" $ "name" NAME). */}}
{{- define "tandem.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end -}}

{{/* What finds the pods that other nodes reach, beside the name of the release. */}}
{{- define "tandem.peersLabel" -}}
tandem/meets: peers
{{- end -}}

{{/*
Labels of an object that is no pod: a new version of the chart that changes nothing of a pod must
not start it anew. (dict "root" $ "name" NAME)
*/}}
{{- define "tandem.labels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/part-of: tandem
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The image of a service: (dict "root" $ "image" OVERRIDES). */}}
{{- define "tandem.image" -}}
{{- $image := mergeOverwrite (deepCopy .root.Values.image) (default (dict) .image) -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/*
Settings of a pod as YAML: `defaults`, and over them its own: (dict "root" $ "own" SETTINGS).
*/}}
{{- define "tandem.settingsOf" -}}
{{- mergeOverwrite (deepCopy .root.Values.defaults) (deepCopy (default dict .own)) | toYaml -}}
{{- end -}}

{{/*
Fields of a pod that say where it runs and with which rights. An empty one is left out.
(dict "root" $ "settings" SETTINGS)
*/}}
{{- define "tandem.placement" -}}
automountServiceAccountToken: false
# Variables of other services would be taken for flags: TANDEM_NATS_PORT, for instance.
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .settings.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Labels or annotations of a pod beside the chart's own: (dict "settings" SETTINGS "field" NAME). */}}
{{- define "tandem.more" -}}
{{- with index .settings .field }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* http or https, for calls between services. */}}
{{- define "tandem.scheme" -}}{{ if .Values.tls.enabled }}https{{ else }}http{{ end }}{{- end -}}

{{/*
Where certificates come from: "cert-manager", "secrets" of the operator, or "generated" by the chart.
Nothing without TLS.
*/}}
{{- define "tandem.certificatesFrom" -}}
{{- if .Values.tls.enabled -}}
{{- if .Values.tls.certManager.enabled -}}cert-manager{{- else if .Values.tls.secrets -}}secrets{{- else -}}generated{{- end -}}
{{- end -}}
{{- end -}}

{{/* The names of what has a certificate, with commas between them. */}}
{{- define "tandem.certified" -}}
{{- $names := list -}}
{{- range $name, $role := include "tandem.roles" . | fromYaml -}}
{{- if include "tandem.runs" (dict "root" $ "name" $name) }}{{- $names = append $names $name }}{{- end -}}
{{- end -}}
{{- if .Values.nats.enabled }}{{- $names = append $names "nats" }}{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{/* Name of the certificate's secret: (dict "root" $ "name" NAME). */}}
{{- define "tandem.tlsSecret" -}}
{{- $given := index .root.Values.tls.secrets .name -}}
{{- default (printf "%s-%s-tls" (include "tandem.fullname" .root) .name) $given -}}
{{- end -}}

{{- define "tandem.engineSecret" -}}
{{- default (printf "%s-engine" (include "tandem.fullname" .)) .Values.engine.existingSecret -}}
{{- end -}}

{{- define "tandem.nodeKeySecret" -}}
{{- default (printf "%s-node-key" (include "tandem.fullname" .)) .Values.nodeKey.existingSecret -}}
{{- end -}}

{{- define "tandem.natsSecret" -}}
{{- default (printf "%s-nats" (include "tandem.fullname" .)) .Values.nats.auth.existingSecret -}}
{{- end -}}

{{/* Where NATS is; nothing for none. */}}
{{- define "tandem.natsUrl" -}}
{{- if .Values.nats.enabled -}}
nats://{{ include "tandem.fullname" . }}-nats:4222
{{- else -}}
{{ .Values.nats.url }}
{{- end -}}
{{- end -}}

{{/* "true" where NATS is a cluster of servers. */}}
{{- define "tandem.severalNats" -}}
{{- if and .Values.nats.enabled (gt (int .Values.nats.replicas) 1) -}}true{{- end -}}
{{- end -}}

{{/* Names of the servers of NATS among themselves, with commas between them. */}}
{{- define "tandem.natsServers" -}}
{{- $full := include "tandem.fullname" . -}}
{{- $names := list -}}
{{- range $index := until (int .Values.nats.replicas) -}}
{{- $names = append $names (printf "%s-nats-%d.%s-nats-pods" $full $index $full) -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{/* Where traces go; nothing for nowhere. */}}
{{- define "tandem.otlp" -}}
{{- if .Values.jaeger.enabled -}}
http://{{ include "tandem.fullname" . }}-jaeger:4317
{{- else -}}
{{ .Values.tracing.endpoint }}
{{- end -}}
{{- end -}}

{{/* Ports of a network policy: those given, else those in addresses, else the usual one:
(dict "given" LIST "urls" TEXT "usual" NUMBER). */}}
{{- define "tandem.portsOf" -}}
{{- $ports := .given | default list -}}
{{- if not $ports -}}
{{- range regexFindAll ":[0-9]+([/,]|$)" .urls -1 }}{{- $ports = append $ports (regexFind "[0-9]+" .) }}{{- end }}
{{- end -}}
{{- $rules := list -}}
{{- range $ports | default (list .usual) | uniq }}{{- $rules = append $rules (dict "port" (int .)) }}{{- end -}}
{{- toYaml $rules -}}
{{- end -}}

{{/* The settings of docs/configuration.md as TOML: (dict "path" LIST "table" MAP). Numbers and texts are
written as JSON, of which they are a part that TOML reads the same way. */}}
{{- define "tandem.toml" -}}
{{- if .path }}
[{{ join "." .path }}]
{{- end }}
{{- range $key, $value := .table }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}
{{ include "tandem.toml" (dict "path" (append $.path $key) "table" $value) }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tandem.settings" -}}
{{ include "tandem.toml" (dict "path" list "table" .Values.config) | trim }}
{{- end -}}

{{/* The ConfigMap with the payloads that `helm test` sends; nothing where there are none of this chain. */}}
{{- define "tandem.testCorpus" -}}
{{- if .Values.test.corpus.configMap -}}
{{ .Values.test.corpus.configMap }}
{{- else if eq .Values.genesis.source "dev" -}}
{{ include "tandem.fullname" . }}-test
{{- end -}}
{{- end -}}

{{/* Names under which the executor's ports are called within the cluster, with commas between them. */}}
{{- define "tandem.executorNames" -}}
{{- include "tandem.namesOf" (dict "root" . "services" (list "executor" "executor-http" "executor-pods")) -}}
{{- end -}}

{{/* Names under which ports are called within the cluster, with commas between them:
(dict "root" $ "services" LIST). */}}
{{- define "tandem.namesOf" -}}
{{- $root := .root -}}
{{- $names := list "localhost" -}}
{{- range .services -}}
{{- $service := printf "%s-%s" (include "tandem.fullname" $root) . -}}
{{- $inside := printf "%s.%s" $service $root.Release.Namespace -}}
{{- $names = concat $names (list $service $inside (printf "%s.svc" $inside) (printf "%s.svc.cluster.local" $inside)) -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{/* Address of /readyz of a service: (dict "root" $ "name" NAME). */}}
{{- define "tandem.readyUrl" -}}
http://{{ include "tandem.fullname" .root }}-{{ .name }}-metrics:{{ include "tandem.metricsPort" .root }}/readyz
{{- end -}}

{{/* Whom `helm test` asks, and on which ports: the executor where there are payloads to send, else
every service that runs. */}}
{{- define "tandem.testCalls" -}}
{{- if include "tandem.testCorpus" . -}}
executor: [metrics, engine]
{{- else -}}
{{- range $name, $role := include "tandem.roles" . | fromYaml }}
{{- if include "tandem.runs" (dict "root" $ "name" $name) }}
{{ $name }}: [metrics]
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{/*
Number of a workload's pods. With autoscaling it is what the autoscaler has chosen, where the cluster
can be asked, and at first the fewest: without a number Kubernetes would take 1.
(dict "root" $ "name" NAME "role" ROLE "service" SETTINGS)
*/}}
{{- define "tandem.replicas" -}}
{{- if and .role.scalable .service.autoscaling.enabled -}}
{{- $name := printf "%s-%s" (include "tandem.fullname" .root) .name -}}
{{- $now := dig "spec" "replicas" 0 (lookup "apps/v1" .role.kind .root.Release.Namespace $name) | int -}}
{{- min (int .service.autoscaling.maxReplicas) (max (int .service.autoscaling.minReplicas) $now) -}}
{{- else -}}
{{ .service.replicas }}
{{- end -}}
{{- end -}}

{{/*
Template of the claim `data` of a StatefulSet. It cannot be changed later, so an existing set keeps its
own: docs/operations.md, "Grow a volume".
(dict "root" $ "set" NAME "scope" SCOPE "persistence" SETTINGS)
*/}}
{{- define "tandem.claimTemplate" -}}
{{- $have := dig "spec" "volumeClaimTemplates" list (lookup "apps/v1" "StatefulSet" .root.Release.Namespace .set) -}}
{{- $spec := dict "accessModes" .persistence.accessModes "resources" (dict "requests" (dict "storage" .persistence.size)) -}}
{{- with .persistence.storageClass }}{{- $_ := set $spec "storageClassName" . }}{{- end -}}
{{- $metadata := dict "name" "data" "labels" (include "tandem.selector" .scope | fromYaml) -}}
{{- with .persistence.annotations }}{{- $_ := set $metadata "annotations" . }}{{- end -}}
{{- with first $have -}}
{{- $spec = .spec -}}
{{- $metadata = pick .metadata "name" "labels" "annotations" -}}
{{- end -}}
{{- list (dict "metadata" $metadata "spec" $spec) | toYaml -}}
{{- end -}}

{{/* Name of the claim that holds the chain. */}}
{{- define "tandem.chainClaim" -}}
{{- $given := (index .Values.services "storage-writer").persistence.existingClaim -}}
{{- default (printf "data-%s-storage-writer-0" (include "tandem.fullname" .)) $given -}}
{{- end -}}
