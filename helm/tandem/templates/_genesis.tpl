{{/*
What makes the database from a genesis before storage-writer starts. A database that is there is
compared with the genesis and stays as it is; one from an address is not fetched then. Of several
storage-writers, the first one alone gets one, and the others copy the state of the one that leads.
*/}}

{{/* Name of the genesis file: its ending says whether it is compressed. */}}
{{- define "tandem.genesisFile" -}}
{{- $genesis := .Values.genesis -}}
{{- if eq $genesis.source "dev" -}}
genesis.json
{{- else if eq $genesis.source "configMap" -}}
{{ $genesis.configMap.key }}
{{- else if eq $genesis.source "claim" -}}
{{ $genesis.claim.path }}
{{- end -}}
{{- end -}}

{{- define "tandem.genesisContainers" -}}
{{- $root := .root -}}
{{- $genesis := $root.Values.genesis -}}
{{- if ne $genesis.source "none" -}}
- name: genesis
  image: {{ include "tandem.image" (dict "root" $root "image" .service.image) }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args:
    - init
    - --datadir=/data
    {{- if include "tandem.severalWriters" $root }}
    - --replica=$(POD_NAME)
    {{- end }}
    {{- if eq $genesis.source "url" }}
    - --genesis-url={{ $genesis.url.address }}
    - --sha256={{ $genesis.url.sha256 }}
    - --genesis-bytes-max={{ int64 $genesis.url.bytesMax }}
    - --genesis-seconds-max={{ int64 $genesis.url.secondsMax }}
    {{- if $genesis.url.ca.configMap }}
    - --genesis-ca=/genesis-ca/ca.crt
    {{- end }}
    {{- else }}
    - --genesis=/genesis/{{ include "tandem.genesisFile" $root }}
    {{- end }}
  {{- if include "tandem.severalWriters" $root }}
  env:
    - name: POD_NAME
      valueFrom: { fieldRef: { fieldPath: metadata.name } }
  {{- end }}
  resources: {{- toYaml $genesis.resources | nindent 4 }}
  {{- with .service.securityContext }}
  securityContext: {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - { name: data, mountPath: /data }
    {{- if ne $genesis.source "url" }}
    - { name: genesis, mountPath: /genesis, readOnly: true }
    {{- else if $genesis.url.ca.configMap }}
    - { name: genesis-ca, mountPath: /genesis-ca, readOnly: true }
    {{- end }}
{{- end }}
{{- end -}}

{{- define "tandem.genesisVolumes" -}}
{{- $genesis := .Values.genesis -}}
{{- if eq $genesis.source "dev" }}
- name: genesis
  configMap: { name: {{ include "tandem.fullname" . }}-genesis }
{{- else if eq $genesis.source "configMap" }}
- name: genesis
  configMap: { name: {{ $genesis.configMap.name }} }
{{- else if and (eq $genesis.source "url") $genesis.url.ca.configMap }}
- name: genesis-ca
  configMap:
    name: {{ $genesis.url.ca.configMap }}
    items: [{ key: {{ $genesis.url.ca.key }}, path: ca.crt }]
{{- else if eq $genesis.source "claim" }}
- name: genesis
  persistentVolumeClaim: { claimName: {{ $genesis.claim.name }}, readOnly: true }
{{- end }}
{{- end -}}

{{/* What tells the genesis of these values from another one; nothing for `none`. */}}
{{- define "tandem.genesisIdentity" -}}
{{- $genesis := .Values.genesis -}}
{{- if eq $genesis.source "dev" -}}
dev {{ .Files.Get "files/dev/genesis.json" | sha256sum | trunc 16 }}
{{- else if eq $genesis.source "configMap" -}}
configMap {{ $genesis.configMap.name }}/{{ $genesis.configMap.key }}
{{- else if eq $genesis.source "url" -}}
url {{ $genesis.url.sha256 }}
{{- else if eq $genesis.source "claim" -}}
claim {{ $genesis.claim.name }}/{{ $genesis.claim.path }}
{{- end -}}
{{- end -}}

{{/*
The genesis that the volume was made from, as an earlier release of these names noted it in the ConfigMap
`…-chain`; nothing where there is no volume, or no note, or no cluster to ask.
*/}}
{{- define "tandem.genesisInUse" -}}
{{- $claim := lookup "v1" "PersistentVolumeClaim" .Release.Namespace (include "tandem.chainClaim" .) -}}
{{- if $claim -}}
{{- dig "data" "genesis" "" (lookup "v1" "ConfigMap" .Release.Namespace (printf "%s-chain" (include "tandem.fullname" .))) -}}
{{- end -}}
{{- end -}}

{{/*
"true" while storage-writer may have to fetch the genesis: at the first install, and as long as no
storage-writer was ready. Later the database is there.
*/}}
{{- define "tandem.genesisIsFetched" -}}
{{- if eq .Values.genesis.source "url" -}}
{{- $egress := .Values.genesis.url.egress -}}
{{- if eq $egress "always" -}}
true
{{- else if eq $egress "auto" -}}
{{- $set := lookup "apps/v1" "StatefulSet" .Release.Namespace (printf "%s-storage-writer" (include "tandem.fullname" .)) -}}
{{- $kept := and (not $set) (include "tandem.genesisInUse" .) -}}
{{- if not (or $kept (dig "status" "readyReplicas" 0 $set)) -}}true{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
