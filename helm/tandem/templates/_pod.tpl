{{/*
The pod of a service: (dict "root" $ "name" NAME "role" ROLE "service" SETTINGS).

The image's entry point is the binary; what it is told stands in the environment, under the names of
its flags, so that a flag in extraArgs stands above it.
*/}}
{{- define "tandem.pod" -}}
{{- $root := .root -}}
{{- $name := .name -}}
{{- $full := include "tandem.fullname" $root -}}
metadata:
  labels:
    {{- include "tandem.selector" . | nindent 4 }}
    {{- if .role.peers }}
    {{- include "tandem.peersLabel" . | nindent 4 }}
    {{- end }}
    {{- with .service.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: {{ $name }}
    {{- if $root.Values.config }}
    # New settings hold from the start on.
    tandem/settings: {{ include "tandem.settings" $root | sha256sum | trunc 16 | quote }}
    {{- end }}
    {{- with .service.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ $full }}-{{ $name }}
  terminationGracePeriodSeconds: {{ .service.terminationGracePeriodSeconds }}
  {{- include "tandem.placement" (dict "root" $root "settings" .service) | nindent 2 }}
  {{- $before := "" }}
  {{- if eq $name "storage-writer" }}
  {{- $before = include "tandem.genesisContainers" (dict "root" $root "service" .service) | trim }}
  {{- end }}
  {{- if or $before .service.initContainers }}
  initContainers:
    {{- with $before }}{{ . | nindent 4 }}{{ end }}
    {{- with .service.initContainers }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- end }}
  containers:
    - name: {{ $name }}
      image: {{ include "tandem.image" (dict "root" $root "image" .service.image) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: {{- prepend (default list .service.extraArgs) .role.command | toYaml | nindent 8 }}
      env: {{- include "tandem.environment" . | nindent 8 }}
      ports:
        - { name: metrics, containerPort: {{ include "tandem.metricsPort" $root }} }
        {{- range $port, $number := .role.ports }}
        - { name: {{ $port }}, containerPort: {{ $number }} }
        {{- end }}
        {{- with .role.peers }}
        {{- $port := include "tandem.peersPort" $root }}
        - name: {{ .port }}
          containerPort: {{ $port }}
          protocol: {{ .protocol }}
          {{- if eq $root.Values.services.discovery.expose.type "HostPort" }}
          hostPort: {{ $port }}
          {{- end }}
        {{- end }}
      # Alive as soon as it listens; ready when it can do its work, or take over that of another one.
      startupProbe:
        httpGet: { path: /livez, port: metrics }
        periodSeconds: 2
        failureThreshold: 60
      readinessProbe:
        httpGet: { path: /readyz, port: metrics }
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 2
      livenessProbe:
        httpGet: { path: /livez, port: metrics }
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      {{- with .service.resources }}
      resources: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .service.securityContext }}
      securityContext: {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts: {{- include "tandem.mounts" . | nindent 8 }}
    {{- with .service.sidecars }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes: {{- include "tandem.volumes" . | nindent 4 }}
  affinity:
    {{- if .service.affinity }}
    {{- toYaml .service.affinity | nindent 4 }}
    {{- else }}
    {{- include "tandem.nextToItsTwin" . | nindent 4 }}
    podAntiAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 100
          podAffinityTerm:
            topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels: {{- include "tandem.selector" . | nindent 16 }}
    {{- end }}
  topologySpreadConstraints:
    {{- if .service.topologySpreadConstraints }}
    {{- toYaml .service.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    - maxSkew: 1
      topologyKey: topology.kubernetes.io/zone
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "tandem.selector" . | nindent 10 }}
    {{- end }}
{{- end -}}

{{/*
discovery and peer-sessions are reached at one address. Where it is that of a host, or leads to hosts, they
run on one: peer-sessions where discovery does, and discovery there if it can. (as "tandem.pod")
*/}}
{{- define "tandem.nextToItsTwin" -}}
{{- $services := .root.Values.services -}}
{{- $twin := get (dict "discovery" "peer-sessions" "peer-sessions" "discovery") .name -}}
{{- if and $twin (has $services.discovery.expose.type (list "HostPort" "NodePort" "LoadBalancer")) -}}
{{- $runs := include "tandem.runs" (dict "root" .root "name" $twin) -}}
{{- if and $runs (int (index $services $twin).replicas) -}}
{{- $selector := include "tandem.selector" (dict "root" .root "name" $twin) | fromYaml -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $selector) -}}
podAffinity:
{{- if eq .name "peer-sessions" }}
  requiredDuringSchedulingIgnoredDuringExecution: {{- list $term | toYaml | nindent 4 }}
{{- else }}
  preferredDuringSchedulingIgnoredDuringExecution: {{- list (dict "weight" 100 "podAffinityTerm" $term) | toYaml | nindent 4 }}
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tandem.environment" -}}
{{- $root := .root -}}
{{- $name := .name -}}
{{- $full := include "tandem.fullname" $root -}}
{{- $scheme := include "tandem.scheme" $root -}}
{{- $bind := $root.Values.bindAddress -}}
- { name: TANDEM_METRICS_ADDR, value: {{ $bind | quote }} }
- { name: TANDEM_METRICS_PORT, value: {{ include "tandem.metricsPort" $root | quote }} }
{{- with .role.ports.grpc }}
- { name: TANDEM_GRPC_ADDR, value: {{ $bind | quote }} }
- { name: TANDEM_GRPC_PORT, value: {{ . | quote }} }
{{- end }}
{{- if .role.data }}
- { name: TANDEM_DATADIR, value: /data }
{{- end }}
{{- if .role.peers }}
- { name: TANDEM_DATADIR, value: /etc/tandem/node }
{{- end }}
{{- range .role.calls }}
{{- if and (ne . "multiproof-workers") (include "tandem.runs" (dict "root" $root "name" .)) }}
- name: TANDEM_{{ if and (eq . "storage-writer") (has $name (list "follower" "storage-writer")) }}LEADER{{ else }}{{ . | upper | replace "-" "_" }}{{ end }}
  value: {{ include "tandem.urlsOf" (dict "root" $root "name" .) }}
{{- end }}
{{- end }}
{{- if and (eq $name "storage-writer") (include "tandem.severalWriters" $root) }}
# Which of them it is itself.
- name: STORAGE_WRITER_POD
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
- { name: TANDEM_ADVERTISE, value: "{{ $scheme }}://$(STORAGE_WRITER_POD).{{ $full }}-storage-writer-pods:{{ .role.ports.grpc }}" }
{{- if not (hasKey (dig "storage_writer" "lead" dict $root.Values.config) "lease_ms") }}
- { name: TANDEM__STORAGE_WRITER__LEAD__LEASE_MS, value: "3000" }
{{- end }}
{{- end }}
{{- if and (eq $name "storage-writer") (include "tandem.severalNats" $root) }}
# Each server of NATS has a copy of what outlives one of them.
{{- range $kept := list "lead" "feed" }}
{{- if not (hasKey (dig "storage_writer" $kept dict $root.Values.config) "replicas") }}
- { name: TANDEM__STORAGE_WRITER__{{ upper $kept }}__REPLICAS, value: {{ $root.Values.nats.replicas | quote }} }
{{- end }}
{{- end }}
{{- end }}
{{- if eq $name "executor" }}
- { name: TANDEM_AUTHRPC_ADDR, value: {{ $bind | quote }} }
- { name: TANDEM_AUTHRPC_PORT, value: {{ .role.ports.engine | quote }} }
- { name: TANDEM_AUTHRPC_JWTSECRET, value: /etc/tandem/engine/jwt.hex }
- { name: TANDEM_HTTP_ADDR, value: {{ $bind | quote }} }
- { name: TANDEM_HTTP_PORT, value: {{ .role.ports.http | quote }} }
# Another executor passes calls on to this one while this one has the right to write.
- name: POD_IP
  valueFrom: { fieldRef: { fieldPath: status.podIP } }
- { name: TANDEM_ADVERTISE, value: "$(POD_IP)" }
- name: TANDEM_EXECUTOR_ID
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
{{- /* The names of the services, and of an Ingress, unless the settings have others. */}}
{{- $names := include "tandem.executorNames" $root }}
{{- $settings := default dict $root.Values.config.executor }}
{{- if not (hasKey $settings "authrpc_vhosts") }}
- { name: TANDEM_AUTHRPC_VHOSTS, value: {{ $names | quote }} }
{{- end }}
{{- if not (hasKey $settings "http_vhosts") }}
{{- $public := list }}
{{- if .service.ingress.enabled }}{{- range .service.ingress.hosts }}{{- $public = append $public .host }}{{- end }}{{- end }}
- { name: TANDEM_HTTP_VHOSTS, value: {{ prepend $public $names | join "," | quote }} }
{{- end }}
{{- end }}
{{- if eq $name "follower" }}
- { name: TANDEM_HTTP_ADDR, value: {{ $bind | quote }} }
- { name: TANDEM_HTTP_PORT, value: {{ .role.ports.http | quote }} }
{{- if not (hasKey (default dict $root.Values.config.executor) "http_vhosts") }}
- { name: TANDEM_HTTP_VHOSTS, value: {{ include "tandem.namesOf" (dict "root" $root "services" (list "follower" "follower-pods")) | quote }} }
{{- end }}
{{- end }}
{{- if eq $name "discovery" }}
- { name: TANDEM_DISCOVERY_ADDR, value: {{ $bind | quote }} }
- { name: TANDEM_DISCOVERY_PORT, value: {{ include "tandem.peersPort" $root | quote }} }
{{- if include "tandem.runs" (dict "root" $root "name" "peer-sessions") }}
- { name: TANDEM_DISCOVERY_TCP_PORT, value: {{ include "tandem.peersPort" $root | quote }} }
{{- end }}
{{- with .service.network }}
- { name: TANDEM_NETWORK, value: {{ . | quote }} }
{{- end }}
{{- with .service.nat }}
- { name: TANDEM_NAT, value: {{ . | quote }} }
{{- end }}
{{- with .service.bootnodes }}
- { name: TANDEM_BOOTNODES, value: {{ join "," . | quote }} }
{{- end }}
{{- end }}
{{- if eq $name "peer-sessions" }}
- { name: TANDEM_SESSIONS_ADDR, value: {{ $bind | quote }} }
- { name: TANDEM_SESSIONS_PORT, value: {{ include "tandem.peersPort" $root | quote }} }
{{- with .service.staticPeers }}
- { name: TANDEM_SESSIONS_PEERS, value: {{ join "," . | quote }} }
{{- end }}
{{- end }}
{{- if eq $name "multiproof-workers" }}
# Executors hear of a worker over NATS, by the address of its pod.
- name: POD_IP
  valueFrom: { fieldRef: { fieldPath: status.podIP } }
- name: TANDEM_WORKER_ID
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
{{- if eq $bind "::" }}
- { name: TANDEM_ADVERTISE, value: "{{ $scheme }}://[$(POD_IP)]:{{ .role.ports.grpc }}" }
{{- else }}
- { name: TANDEM_ADVERTISE, value: "{{ $scheme }}://$(POD_IP):{{ .role.ports.grpc }}" }
{{- end }}
{{- end }}
{{- if not .role.offBus }}
{{- with include "tandem.natsUrl" $root }}
- { name: TANDEM_NATS, value: {{ . | quote }} }
{{- end }}
{{- if $root.Values.nats.auth.enabled }}
- { name: TANDEM_NATS_USER, value: {{ $name }} }
- { name: TANDEM_NATS_PASSWORD_FILE, value: /etc/tandem/nats/password }
{{- end }}
{{- if include "tandem.natsTls" $root }}
- { name: TANDEM_NATS_TLS_CA_FILE, value: {{ include "tandem.natsTlsFolder" $root }}/ca.crt }
- { name: TANDEM_NATS_TLS_CERT_FILE, value: {{ include "tandem.natsTlsFolder" $root }}/tls.crt }
- { name: TANDEM_NATS_TLS_KEY_FILE, value: {{ include "tandem.natsTlsFolder" $root }}/tls.key }
{{- end }}
{{- end }}
{{- if $root.Values.tls.enabled }}
- { name: TANDEM__TLS__CA, value: /etc/tandem/tls/ca.crt }
- { name: TANDEM__TLS__CERT, value: /etc/tandem/tls/tls.crt }
- { name: TANDEM__TLS__KEY, value: /etc/tandem/tls/tls.key }
{{- end }}
{{- if $root.Values.config }}
- { name: TANDEM_CONFIG, value: /etc/tandem/config/tandem.toml }
{{- end }}
{{- with include "tandem.otlp" $root }}
- { name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }} }
{{- with $root.Values.tracing.headersSecret.name }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: { secretKeyRef: { name: {{ . }}, key: {{ $root.Values.tracing.headersSecret.key }} } }
{{- end }}
{{- if $root.Values.tracing.caSecret.name }}
- { name: OTEL_EXPORTER_OTLP_CERTIFICATE, value: /etc/tandem/otlp/ca.crt }
{{- end }}
{{- end }}
# Whose spans they are.
- name: POD_NAME
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
- name: POD_NAMESPACE
  valueFrom: { fieldRef: { fieldPath: metadata.namespace } }
- name: NODE_NAME
  valueFrom: { fieldRef: { fieldPath: spec.nodeName } }
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.pod.name=$(POD_NAME),k8s.namespace.name=$(POD_NAMESPACE),k8s.node.name=$(NODE_NAME)
- { name: TANDEM_TRACE_LEVEL, value: {{ $root.Values.tracing.level }} }
- { name: TANDEM_LOG_FORMAT, value: {{ $root.Values.log.format }} }
- { name: RUST_LOG, value: {{ $root.Values.log.filter | quote }} }
{{- with .service.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* "true" where NATS is reached over TLS: ours when everything is, another one when a secret is named. */}}
{{- define "tandem.natsTls" -}}
{{- if .Values.nats.enabled -}}{{ if .Values.tls.enabled }}true{{ end }}{{- else -}}{{ if .Values.nats.tlsSecret }}true{{ end }}{{- end -}}
{{- end -}}

{{- define "tandem.natsTlsFolder" -}}
{{- if .Values.nats.enabled -}}/etc/tandem/tls{{- else -}}/etc/tandem/nats-tls{{- end -}}
{{- end -}}

{{- define "tandem.mounts" -}}
{{- $root := .root -}}
{{- $mounts := list -}}
{{- if .role.data }}{{- $mounts = append $mounts (dict "name" "data" "mountPath" "/data") }}{{- end }}
{{- if .role.peers }}{{- $mounts = append $mounts (dict "name" "node-key" "mountPath" "/etc/tandem/node" "readOnly" true) }}{{- end }}
{{- if $root.Values.config }}{{- $mounts = append $mounts (dict "name" "config" "mountPath" "/etc/tandem/config" "readOnly" true) }}{{- end }}
{{- if and $root.Values.nats.auth.enabled (not .role.offBus) }}{{- $mounts = append $mounts (dict "name" "nats-password" "mountPath" "/etc/tandem/nats" "readOnly" true) }}{{- end }}
{{- if and (include "tandem.natsTls" $root) (not $root.Values.nats.enabled) (not .role.offBus) }}{{- $mounts = append $mounts (dict "name" "nats-tls" "mountPath" "/etc/tandem/nats-tls" "readOnly" true) }}{{- end }}
{{- if $root.Values.tls.enabled }}{{- $mounts = append $mounts (dict "name" "tls" "mountPath" "/etc/tandem/tls" "readOnly" true) }}{{- end }}
{{- if eq .name "executor" }}{{- $mounts = append $mounts (dict "name" "engine" "mountPath" "/etc/tandem/engine" "readOnly" true) }}{{- end }}
{{- if $root.Values.tracing.caSecret.name }}{{- $mounts = append $mounts (dict "name" "otlp-ca" "mountPath" "/etc/tandem/otlp" "readOnly" true) }}{{- end }}
{{- concat $mounts (default list .service.extraVolumeMounts) | toYaml }}
{{- end -}}

{{- define "tandem.volumes" -}}
{{- $root := .root -}}
{{- $full := include "tandem.fullname" $root -}}
{{- $volumes := list -}}
{{- if $root.Values.config }}
{{- $volumes = append $volumes (dict "name" "config" "configMap" (dict "name" (printf "%s-config" $full))) }}
{{- end }}
{{- if and $root.Values.nats.auth.enabled (not .role.offBus) }}
{{- /* A service sees its own password alone. */}}
{{- $items := list (dict "key" .name "path" "password") }}
{{- $volumes = append $volumes (dict "name" "nats-password" "secret" (dict "secretName" (include "tandem.natsSecret" $root) "defaultMode" 288 "items" $items)) }}
{{- end }}
{{- if and (include "tandem.natsTls" $root) (not $root.Values.nats.enabled) (not .role.offBus) }}
{{- $volumes = append $volumes (dict "name" "nats-tls" "secret" (dict "secretName" $root.Values.nats.tlsSecret "defaultMode" 288)) }}
{{- end }}
{{- if $root.Values.tls.enabled }}
{{- $volumes = append $volumes (dict "name" "tls" "secret" (dict "secretName" (include "tandem.tlsSecret" .) "defaultMode" 288)) }}
{{- end }}
{{- if eq .name "executor" }}
{{- $items := list (dict "key" $root.Values.engine.key "path" "jwt.hex") }}
{{- $volumes = append $volumes (dict "name" "engine" "secret" (dict "secretName" (include "tandem.engineSecret" $root) "defaultMode" 288 "items" $items)) }}
{{- end }}
{{- if .role.peers }}
{{- $items := list (dict "key" $root.Values.nodeKey.key "path" "nodekey") }}
{{- $volumes = append $volumes (dict "name" "node-key" "secret" (dict "secretName" (include "tandem.nodeKeySecret" $root) "defaultMode" 288 "items" $items)) }}
{{- end }}
{{- if $root.Values.tracing.caSecret.name }}
{{- $items := list (dict "key" $root.Values.tracing.caSecret.key "path" "ca.crt") }}
{{- $volumes = append $volumes (dict "name" "otlp-ca" "secret" (dict "secretName" $root.Values.tracing.caSecret.name "defaultMode" 288 "items" $items)) }}
{{- end }}
{{- if eq .name "storage-writer" }}
{{- with include "tandem.genesisVolumes" $root | trim }}
{{- range (fromYamlArray .) }}{{- $volumes = append $volumes . }}{{- end }}
{{- end }}
{{- with .service.persistence.existingClaim }}
{{- $volumes = append $volumes (dict "name" "data" "persistentVolumeClaim" (dict "claimName" .)) }}
{{- end }}
{{- else if .role.copies }}
{{- /* Each pod has a claim of its own, by the StatefulSet. */}}
{{- if not .service.persistence.enabled }}
{{- $volumes = append $volumes (dict "name" "data" "emptyDir" (dict "sizeLimit" .service.persistence.size)) }}
{{- end }}
{{- else if .role.data }}
{{- if .service.persistence.existingClaim }}
{{- $volumes = append $volumes (dict "name" "data" "persistentVolumeClaim" (dict "claimName" .service.persistence.existingClaim)) }}
{{- else if .service.persistence.enabled }}
{{- $volumes = append $volumes (dict "name" "data" "persistentVolumeClaim" (dict "claimName" (printf "%s-%s" $full .name))) }}
{{- else }}
{{- $volumes = append $volumes (dict "name" "data" "emptyDir" (dict "sizeLimit" "64Mi")) }}
{{- end }}
{{- end }}
{{- concat $volumes (default list .service.extraVolumes) | toYaml }}
{{- end -}}
