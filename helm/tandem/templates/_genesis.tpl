{{/*
What makes the database from a genesis before storage-writer starts. A database that is there is
compared with the genesis and stays as it is.
*/}}

{{/* Name of the genesis file: its ending says whether it is compressed. */}}
{{- define "tandem.genesisFile" -}}
{{- $genesis := .Values.genesis -}}
{{- if eq $genesis.source "dev" -}}
genesis.json
{{- else if eq $genesis.source "configMap" -}}
{{ $genesis.configMap.key }}
{{- else if eq $genesis.source "url" -}}
{{ base $genesis.url.address }}
{{- else if eq $genesis.source "claim" -}}
{{ $genesis.claim.path }}
{{- end -}}
{{- end -}}

{{- define "tandem.genesisContainers" -}}
{{- $root := .root -}}
{{- $genesis := $root.Values.genesis -}}
{{- if ne $genesis.source "none" -}}
{{- if eq $genesis.source "url" }}
- name: genesis-download
  image: {{ $genesis.url.image }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args:
    - --fail
    - --silent
    - --show-error
    - --location
    - --retry
    - "5"
    - --output
    - /genesis/{{ include "tandem.genesisFile" $root }}
    - {{ $genesis.url.address | quote }}
  resources: {{- toYaml $genesis.resources | nindent 4 }}
  securityContext: {{- include "tandem.containerSecurity" $root | nindent 4 }}
  volumeMounts:
    - { name: genesis, mountPath: /genesis }
{{- end }}
- name: genesis
  image: {{ include "tandem.image" (dict "root" $root "image" .service.image) }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args:
    - init
    - --genesis=/genesis/{{ include "tandem.genesisFile" $root }}
    - --datadir=/data
    {{- if eq $genesis.source "url" }}
    - --sha256={{ $genesis.url.sha256 }}
    {{- end }}
  resources: {{- toYaml $genesis.resources | nindent 4 }}
  securityContext: {{- include "tandem.containerSecurity" $root | nindent 4 }}
  volumeMounts:
    - { name: data, mountPath: /data }
    - { name: genesis, mountPath: /genesis, readOnly: true }
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
{{- else if eq $genesis.source "url" }}
- name: genesis
  emptyDir: { sizeLimit: {{ $genesis.url.sizeLimit }} }
{{- else if eq $genesis.source "claim" }}
- name: genesis
  persistentVolumeClaim: { claimName: {{ $genesis.claim.name }}, readOnly: true }
{{- end }}
{{- end -}}
