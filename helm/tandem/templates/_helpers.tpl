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

{{/*
Labels of an object, but for pods: a new version of the chart that changes nothing of a pod must
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

{{- define "tandem.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "tandem.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{/* http or https, for calls between services. */}}
{{- define "tandem.scheme" -}}{{ if .Values.tls.enabled }}https{{ else }}http{{ end }}{{- end -}}

{{/* Name of the certificate's secret: (dict "root" $ "name" NAME). */}}
{{- define "tandem.tlsSecret" -}}
{{- $given := index .root.Values.tls.secrets .name -}}
{{- default (printf "%s-%s-tls" (include "tandem.fullname" .root) .name) $given -}}
{{- end -}}

{{- define "tandem.engineSecret" -}}
{{- default (printf "%s-engine" (include "tandem.fullname" .)) .Values.engine.existingSecret -}}
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
